"""How well chains have mixed: rank-normalised split R-hat, bulk and tail effective sample size.

Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC". Draws are [chains, draws].

Chains wander between copies of a mode that differ in the order of units. R-hat and effective sample
sizes of single weights follow this wandering; those of `functionals`, which do not depend on the
order of hidden units, nor on signs of tanh units, follow the posterior.
"""

import math
from typing import NamedTuple

from utils.distances.units import describe_units
from utils.networks.network import Network
from utils.runs.seeding import generator

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import beta, rankdata
from torch import Tensor

NORM_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def functional_names(network: Network) -> list[str]:
    """Return the names of `functionals`."""
    classes = range(network.num_classes)
    names = [f"mean square of {slot.name}" for slot in _with_prior(network)]
    names += [f"{what} of class {c}" for what in ("Σv²", "Σv⁴", "bias") for c in classes]
    for group in _groups(network):
        names += [f"norm of units of {group}, quantile {share:g}" for share in NORM_QUANTILES]
        names.append(f"largest eigenvalue of the Gram matrix of {group}")
    return names


def functionals(network: Network, weights: Tensor) -> Tensor:
    """Return the functionals of one weight vector [d], in float64.

    They are the mean square of every tensor; for every class the sums of v² and v⁴ over its
    outgoing weights v, and its bias; for every group of units, each described by all of its
    weights, quantiles of their norms and the largest eigenvalue of their Gram matrix.
    """
    weights = weights.double()
    output, bias = (slot.of(weights) for slot in network.slots[-2:])
    squares = output.flatten(1).square()
    parts = [slot.of(weights).square().mean()[None] for slot in _with_prior(network)]
    parts += [squares.sum(1), squares.square().sum(1), bias]
    shares = weights.new_tensor(NORM_QUANTILES)
    for group in _groups(network):
        (units,) = describe_units(network, weights[None], group)
        small = units.T @ units if units.shape[0] > units.shape[1] else units @ units.T
        parts += [units.norm(dim=1).quantile(shares), torch.linalg.eigvalsh(small)[-1:]]
    return torch.cat(parts)


def _with_prior(network: Network) -> list:
    return [slot for slot in network.slots if slot.role != "buffer"]


def _groups(network: Network) -> list[str]:
    return [name for name in network.groups if network.slots_of(name)]


# ---- R-hat and effective sample size

MIN_DRAWS = 8  # per chain; with fewer there are no diagnostics
MAX_RHAT = 1.05  # above it, report "not mixed"
REFERENCE_RHAT, REFERENCE_ESS = 1.01, 400  # what Vehtari et al. ask of a chain that others rely on
# What makes `utils.methods.hmc` reject a trajectory that was followed back: more than this distance
# from its start, in distances that it has gone, or more than this |ΔH there + ΔH back|, in nats.
REJECTED_MISS, REJECTED_GAP = 0.01, 1.0
# Largest share of such trajectories in a reference, by its upper limit at 95 % confidence. Only
# those that are followed back are rejected. One of the others moves the chain wrongly, by a
# standard deviation or so, and this is forgotten after τ transitions. A share r then shifts means
# by up to r τ standard deviations: for 2 % and τ = 2.5 the sampling error of REFERENCE_ESS samples.
MAX_MISSED = 0.02
FOLLOW_LABELS = {"weights", "output_layer"}  # projections that depend on the order of units
LABELS_REMARK = (
    "Projections of weights follow the labels of hidden units, which a chain may switch without "
    "any effect on the function: their R-hat is no sign of bad mixing. The invariants do not "
    "depend on labels."
)
NUM_IMAGES = 20
NUM_PROJECTIONS = 16


def groups_worse_than(
    groups: dict[str, dict], most_rhat: float, least_ess: float = 0.0
) -> list[str]:
    """Return the groups of `diagnose_all` with a larger R-hat or smaller bulk ESS, with both.

    Groups that depend on the order of hidden units are left out: chains may switch labels.
    """
    return [
        f"{name.replace('_', ' ')} (largest R-hat {float(group['largest_rhat'] or 'inf'):.2f}, "
        f"smallest bulk ESS {group['smallest_ess_bulk']:.0f})"
        for name, group in groups.items()
        if group and name not in FOLLOW_LABELS
        and not ((group["largest_rhat"] or math.inf) <= most_rhat
                 and group["smallest_ess_bulk"] >= least_ess)
    ]  # fmt: skip


def slow_groups(groups: dict[str, dict]) -> list[str]:
    """Return the groups that have not mixed, each with its numbers."""
    return groups_worse_than(groups, MAX_RHAT)


class WaysBack(NamedTuple):
    """What became of the trajectories that were followed back."""

    followed: int
    missed: int  # and were rejected
    largest_gap: float | None  # largest |ΔH there + ΔH back| in nats; None: infinite, or none

    @property
    def largest_share(self) -> float:
        """The largest share of all trajectories that miss, with a confidence of 95 % (binomial)."""
        if self.missed == self.followed:
            return 1.0
        return float(beta.ppf(0.95, self.missed + 1, self.followed - self.missed))

    def shortfall(self) -> str:
        """Say why it is not known that trajectories return, if it is not."""
        if not self.followed:
            return "no trajectory was followed back"
        if self.largest_share <= MAX_MISSED:
            return ""
        many = self.missed > MAX_MISSED * self.followed
        what = "trajectories do not return" if many else "too few trajectories were followed back"
        return (
            f"{what} ({self.missed} of {self.followed} missed, so up to "
            f"{100 * self.largest_share:.3g} % of all may, and {100 * MAX_MISSED:g} % are allowed)"
        )


def ways_back(transitions: list[dict]) -> WaysBack:
    """Return what the records of transitions say of those that were followed back.

    None stands for a number that is infinite or NaN.
    """
    followed = [each for each in transitions if each.get("followed_back")]
    numbers = [(each["reversal_miss"], each["reversal_gap"]) for each in followed]
    missed = sum(
        None in pair or pair[0] > REJECTED_MISS or abs(pair[1]) > REJECTED_GAP for pair in numbers
    )
    gaps = [gap for _, gap in numbers]
    largest = max(map(abs, gaps)) if gaps and None not in gaps else None
    return WaysBack(len(followed), missed, largest)


def shortfalls(diagnostics: dict, back: WaysBack) -> list[str]:
    """Return what keeps chains from being a reference; nothing if they have converged.

    Functions and permutation-invariant functionals need an R-hat of at most REFERENCE_RHAT, over
    several chains, and a bulk ESS of REFERENCE_ESS (Vehtari et al. 2021). All but MAX_MISSED of the
    trajectories have to return when they are followed back.
    """
    missing = ["there is a single chain"] if diagnostics["chains"] < 2 else []
    if not diagnostics["groups"].get("invariants"):
        missing.append("functionals of the weights were not recorded")
    groups = diagnostics["groups"]
    missing += groups_worse_than(groups, REFERENCE_RHAT, REFERENCE_ESS)
    return [*missing, *filter(None, [back.shortfall()])]


def energy_balance(changes: list[float | None]) -> tuple[float, float]:
    """Return the mean of exp(−ΔH) over all proposals and its standard error.

    Among the ΔH, None stands for one that diverged.

    In a stationary chain it is 1, whatever the step size, if ΔH is computed correctly and the
    trajectory is a one-to-one map that preserves volume. It does not test whether trajectories are
    reversible, nor whether the accept step is right.
    """
    ratios = np.exp(-np.array([math.inf if change is None else change for change in changes]))
    return float(ratios.mean()), float(ratios.std(ddof=1) / len(ratios) ** 0.5)


def diagnose(draws: np.ndarray) -> dict[str, float]:
    """Return mean, standard deviation, R-hat, bulk and tail ESS of one quantity.

    The ESS of squared deviations is that of its variance.
    """
    return {
        "mean": float(draws.mean()),
        "std": float(draws.std()),
        "rhat": rhat(draws),
        "ess_bulk": ess_bulk(draws),
        "ess_tail": ess_tail(draws),
        "ess_squares": ess_mean(np.square(draws - draws.mean())),
    }


def rhat(draws: np.ndarray) -> float:
    """Return the larger R-hat of location and scale (folded), rank-normalised and split."""
    halves = split(draws)
    folded = np.abs(halves - np.median(halves))
    return max(_basic_rhat(rank_normalise(halves)), _basic_rhat(rank_normalise(folded)))


def ess_bulk(draws: np.ndarray) -> float:
    """Return the effective sample size of the rank-normalised draws."""
    return _basic_ess(rank_normalise(split(draws)))


def ess_mean(draws: np.ndarray) -> float:
    """Return the effective sample size for the mean of the draws as they are."""
    return _basic_ess(split(draws))


def ess_tail(draws: np.ndarray) -> float:
    """Return the smaller effective sample size of the 5 % and 95 % quantiles.

    A quantile with all split draws on one side is ignored.
    """
    sides = (split((draws <= np.quantile(draws, share)).astype(float)) for share in (0.05, 0.95))
    return float(np.fmin(*map(_basic_ess, sides)))


def split(draws: np.ndarray) -> np.ndarray:
    """Split each chain into its halves, [2C, n/2]; the middle one of an odd number is left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def rank_normalise(draws: np.ndarray) -> np.ndarray:
    """Return z = Φ⁻¹((r − 3/8) / (S + 1/4)), r the rank among all S draws (equation 14)."""
    ranks = rankdata(draws, method="average").reshape(draws.shape)
    return ndtri((ranks - 0.375) / (draws.size + 0.25))


def _basic_rhat(chains: np.ndarray) -> float:
    """Return √(var⁺ / W), equations 1 to 4."""
    num_draws = chains.shape[1]
    within = chains.var(axis=1, ddof=1).mean()
    between = chains.mean(axis=1).var(ddof=1)
    if not within > 0:  # all chains are constant
        return float("inf") if between > 0 else float("nan")
    return float(np.sqrt((num_draws - 1) / num_draws + between / within))


def _basic_ess(chains: np.ndarray) -> float:
    """Return S / τ with τ = −1 + 2 Σ_t P_t, P_t = ρ_2t + ρ_2t+1 (Geyer 1992; equations 10 to 13).

    The sum ends at the first negative P_t, or before the last draws, and P_t is made
    non-increasing. As in Stan, the ρ_2t of the pair where it ends is added if it is positive.
    """
    num_chains, num_draws = chains.shape
    covariance = autocovariance(chains).mean(axis=0)
    within = covariance[0] * num_draws / (num_draws - 1)
    variance = covariance[0] + chains.mean(axis=1).var(ddof=1)
    if not variance > 0:
        return float("nan")
    correlation = 1 - (within - covariance) / variance
    correlation[0] = 1
    pairs = correlation[: num_draws // 2 * 2].reshape(-1, 2).sum(axis=1)
    most = max((num_draws - 3) // 2, 1)
    end = next(iter(np.flatnonzero(pairs[:most] < 0)), most)
    tau = -1 + 2 * np.minimum.accumulate(pairs[:end]).sum() + max(correlation[2 * end], 0.0)
    total = num_chains * num_draws
    return float(total / max(tau, 1 / np.log10(total)))  # antithetic chains: at most S log10 S


def autocovariance(chains: np.ndarray) -> np.ndarray:
    """Return (1/n) Σ_i (x_i − x̄)(x_{i+t} − x̄) of each chain for t = 0 … n − 1, by FFT."""
    num_draws = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * num_draws)
    return np.fft.irfft(np.abs(spectrum) ** 2)[:, :num_draws] / num_draws


class Quantities:
    """The numbers of a sample that are diagnosed, of its function and of its weights.

    Functions: test log-likelihood, training NLL, and for some test images the sum of the
    probabilities of all wrong classes (1 − p has the same ranks as p, but keeps its digits near 0).
    Weights: projections on random directions, of all weights and of the output layer, which depend
    on the order of hidden units; and functionals that do not, the invariants.
    """

    def __init__(self, network: Network, labels: Tensor, seed: int):
        self._network, self._labels = network, labels.unsqueeze(1)
        self._images = torch.linspace(0, len(labels) - 1, NUM_IMAGES).long().to(labels.device)
        output_layer = sum(slot.size for slot in network.slots[-2:])
        sizes = {"weights": network.num_weights, "output_layer": output_layer}
        self._directions = {
            name: torch.randn(
                NUM_PROJECTIONS, size, generator=generator(seed, "projections", name)
            ).to(labels.device)
            / size**0.5
            for name, size in sizes.items()
        }
        self.names = ["test_log_likelihood", "train_nll", "mean_squared_weight"]
        self.names += [f"probability/{i}" for i in self._images.tolist()]
        self.names += [f"{name}/{i}" for name in sizes for i in range(NUM_PROJECTIONS)]
        self.names += [f"invariants/{name}" for name in functional_names(network)]

    def measure(self, weights: Tensor, test_probabilities: Tensor, train_nll: float) -> Tensor:
        """Return the numbers named `names`, in float64."""
        probabilities = test_probabilities.double()
        chosen = probabilities.gather(1, self._labels).squeeze(1)
        wrong = probabilities[self._images].scatter(1, self._labels[self._images], 0).sum(1)
        smallest = torch.finfo(test_probabilities.dtype).tiny  # for probabilities rounded to 0
        scalars = [
            chosen.clamp(min=smallest).log().sum(),
            torch.tensor(train_nll, dtype=torch.float64, device=weights.device),
            weights.double().square().mean(),
        ]
        projections = [
            (directions @ weights[-directions.shape[1] :]).double()
            for directions in self._directions.values()
        ]
        invariants = functionals(self._network, weights)
        return torch.cat([torch.stack(scalars), wrong, *projections, invariants]).cpu()

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of quantities that versions measure: without and with invariants."""
        return len(self.names) - len(functional_names(self._network)), len(self.names)

    def complete(self, measured: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the numbers of all samples, with invariants if an earlier version left them out.

        Rows that are still to be filled are 0 in both arrays, and stay so.
        """
        count = min(self.widths)
        if measured.shape[1] != count:
            return measured
        whole = np.zeros((len(measured), len(self.names)))
        whole[:, :count] = measured
        for row, weights in enumerate(samples):
            if weights.any():
                sample = torch.from_numpy(weights.astype(np.float32))
                whole[row, count:] = functionals(self._network, sample).numpy()
        return whole


def diagnose_all(draws: np.ndarray, names: list[str], hours: float) -> dict:
    """Diagnose every quantity of draws [chains, draws, quantities], and their groups.

    A group has all quantities of one kind, such as all probabilities, and is as good as its worst.
    Constant quantities, such as the probability of an image that is always certain, have no R-hat
    or ESS and are left out of their group; a group of nothing else is empty. R-hat is infinite (in
    JSON null) if chains are constant at different values.
    """
    each = {name: diagnose(draws[:, :, i]) for i, name in enumerate(names)}
    groups: dict[str, list[dict]] = {}
    for name, numbers in each.items():
        groups.setdefault(name.split("/")[0], []).append(numbers)
    return {
        "chains": draws.shape[0],
        "draws_per_chain": draws.shape[1],
        "hours": hours,
        "groups": {name: _summary(members, hours) for name, members in groups.items()},
        "quantities": each,
    }


def _summary(members: list[dict], hours: float) -> dict:
    columns = {key: np.array([numbers[key] for numbers in members]) for key in members[0]}
    columns = {key: values[~np.isnan(values)] for key, values in columns.items()}
    squares = columns.pop("ess_squares")  # none of quantities that have two values
    if not all(len(values) for values in columns.values()):
        return {}
    median = float(np.median(columns["ess_bulk"]))
    return {
        "largest_rhat": float(columns["rhat"].max()),
        "smallest_ess_bulk": float(columns["ess_bulk"].min()),
        "median_ess_bulk": median,
        "smallest_ess_tail": float(columns["ess_tail"].min()),
        "smallest_ess_squares": float(squares.min()) if len(squares) else math.nan,
        "median_ess_squares": float(np.median(squares)) if len(squares) else math.nan,
        "median_ess_bulk_per_hour": median / hours,
    }


# ---- chains that are not exact, beside chains that are


class Bias(NamedTuple):
    """How the mean of each quantity [F] differs from that in exact chains."""

    difference: np.ndarray
    error: np.ndarray  # of the difference, from the effective samples of both
    std: np.ndarray  # of the quantity, in the exact chains

    @property
    def z(self) -> np.ndarray:
        return self.difference / self.error

    @property
    def shift(self) -> float:
        """The root mean square over quantities of difference / std, without what errors add."""
        excess = (self.difference**2 - self.error**2) / self.std**2
        return float(np.sqrt(max(np.nanmean(excess), 0.0)))


def bias(samples: np.ndarray, exact: np.ndarray) -> Bias:
    """Compare draws [chains, draws, F] with exact ones. Constant quantities are NaN."""
    difference = samples.mean((0, 1)) - exact.mean((0, 1))
    errors = np.hypot(mean_errors(samples), mean_errors(exact))
    std = exact.std((0, 1))
    errors[errors == 0] = std[std == 0] = np.nan
    return Bias(difference, errors, std)


def mean_errors(draws: np.ndarray) -> np.ndarray:
    """Return the standard errors [F] of the means of draws [chains, draws, F].

    They rest on the effective sample size, to which differences between chains contribute.
    """
    sizes = np.array([ess_mean(draws[:, :, k]) for k in range(draws.shape[2])])
    return draws.std((0, 1)) / np.sqrt(sizes)
