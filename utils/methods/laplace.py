"""The Laplace approximation: a Gaussian at a mode with the curvature found there.

MacKay 1992; Daxberger et al. 2021, "Laplace Redux". At the minimum w* of U(w) = Σ CE + ½ Σ w²/s²,
and at temperature T,

    q(w) = N(w*, T (H + S⁻²)⁻¹) = N(w*, T S (S H S + I)⁻¹ S)        S = diag(s)

where H, the curvature of Σ CE, is the generalised Gauss-Newton matrix or the Hessian
(`utils.methods.curvature`), or as much of it as `structure` says. Weights of other layers than
those keep their values. Running statistics of batch normalisation are no part of the posterior.

The Hessian at a mode that training has not quite reached may have negative eigenvalues. They count
as 0 by default, which leaves the prior's variance in these directions, or the mode is refused.

H does not depend on the prior, so the evidence is known for all priors N(0, s²/δ):

    log Z(δ) = −Σ CE / T − ½ δ Σ w*² / (T s²) + ½ Σ_i log(δ / (λ_i + δ))

with the eigenvalues λ of S H S. With `tune_prior`, δ maximises it: q then is of another posterior
than the one stated, although w* is the mode of that one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from utils.evaluation.linearised import linearised_predictions
from utils.methods.curvature import (
    Curvature,
    dense,
    diagonal_ggn,
    full_ggn,
    hessian,
    kronecker_ggn,
    last_layer_ggn,
    trained_places,
)
from utils.methods.method import Problem, Scores, scores_on
from utils.methods.training import RecipeConfig, TrainedMethod, epoch_record
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture, Posterior
from utils.report.figures import ORANGE, Look
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

STRUCTURES = ("kron", "diagonal", "full", "last_layer_kron", "last_layer_full")
MOST_DENSE = 20_000  # weights of a dense block: 3.2 GB in float64
# Of the prior's precision, between which the marginal likelihood chooses.
PRECISION_FACTORS = (1e-6, 1e9)
FACTS = ("log_marginal_likelihood", "prior_scale", "num_negative", "smallest")


@dataclass(frozen=True, kw_only=True)
class LaplaceConfig(RecipeConfig):
    optimizer: str = option("Adam", "optimiser of every network", choices=("SGD", "Adam"))
    structure: str = option(
        "last_layer_kron",
        "what is kept of the curvature; full is for networks of a few thousand weights",
        choices=STRUCTURES,
    )  # fmt: skip
    curvature: str = option(
        "ggn", "generalised Gauss-Newton matrix, or the Hessian, which needs structure full",
        choices=("ggn", "hessian"),
    )  # fmt: skip
    indefinite: str = option(
        "clip", "negative eigenvalues of the Hessian: count as 0, or refuse the mode if the "
        "posterior's precision has any", choices=("clip", "refuse"), changeable=True,
    )  # fmt: skip
    tune_prior: bool = option(
        False, "scale the prior to the largest marginal likelihood, after training with it as "
        "stated: the posterior is then of another prior",
    )  # fmt: skip
    linearised: bool = option(
        True, "score predictions of the linearised network, too", changeable=True
    )
    num_draws: int = option(30, "weight samples that the predictions average over", minimum=1)

    def __post_init__(self):
        super().__post_init__()
        self.refuse_flat_prior()
        if self.curvature == "hessian" and self.structure != "full":
            raise UserError(
                f"The Hessian is computed as a whole: give --structure full, not {self.structure}, "
                "or --curvature ggn."
            )


class LaplaceState(NamedTuple):
    """A mode after `epoch` epochs, and at last what is fitted to it, which no checkpoint keeps."""

    modes: Tensor  # [1]
    weights: Tensor  # [1, d]
    momentum: Tensor  # [1, d]
    second_moment: Tensor | None = None  # [1, d], of Adam
    epoch: int = 0
    fitted: Posterior | None = None


class Laplace(TrainedMethod):
    name, kind, title = "laplace", "Laplace", "Laplace"
    look = Look(ORANGE, ":", "v")
    Config = LaplaceConfig

    def init(self, problem: Problem, config, modes: Sequence[int]) -> LaplaceState:
        check_dense_size(problem.network, config.structure)
        start = super().init(problem, config, modes)
        if config.structure == "kron":  # networks without the factors are refused before training
            kronecker_ggn(problem.network, start.weights[0], problem.train_inputs[:1])
        return LaplaceState(start.modes, *start[:3])

    def step(self, problem: Problem, state: LaplaceState, config) -> tuple:
        """Train for an epoch; after the last one, fit the Gaussian."""
        state, losses = self.train_epoch(problem, state, config)
        record = epoch_record(problem, state, losses, state.weights[0], config)
        if state.epoch == config.num_epochs:
            fitted, facts = fit(problem, state.weights[0], config)
            state = state._replace(fitted=fitted)
            record |= {f"{name}_{state.modes.item()}": value for name, value in facts.items()}
        return state, [record]

    def posterior(self, problem: Problem, state: LaplaceState, config) -> Posterior:
        return state.fitted or fit(problem, state.weights[0], config)[0]

    def scores(self, problem: Problem, posterior: Posterior, config, newest: dict) -> Scores:
        """Score draws, the modes themselves and predictions of the linearised network."""
        scores = super().scores(problem, posterior, config, newest)
        data, network, rows, summary = problem.data, problem.network, [], {}
        if isinstance(posterior, Mixture):
            modes = [mode.mean.to(problem.device) for mode in posterior.components]
            average = sum(class_probabilities(network, m, data.test_images) for m in modes)
            summary = scores_on("mode_test", average / len(modes), data.test_labels)
            rows.append(["modes", *summary.values()])
        if config.linearised:
            predictions = linearised_predictions(
                posterior, data.test_images, config.num_draws,
                generator(config.seed, "drawn_logits"),
            )  # fmt: skip
            for name, probabilities in predictions.items():
                own = scores_on(f"{name}_test", probabilities, data.test_labels)
                rows.append([f"linearised, {name}", *own.values()])
                summary |= own
        facts = facts_of(newest)
        summary = scores.summary | summary | facts
        return Scores(summary, [*scores.rows, *rows], remarks(facts, problem, config))


# ---- the fit


def fit(problem: Problem, weights: Tensor, config) -> tuple[Posterior, dict[str, float]]:
    """Return the Gaussian at a mode [d], and its FACTS."""
    stds = torch.as_tensor(problem.prior.std, dtype=torch.float64, device=weights.device)
    stds = stds.expand(len(weights))
    blocks, facts = without_negative(curvature_at(problem, weights, stds, config), config)
    values = torch.cat([block.eigenvalues.flatten() for block in blocks])
    places = torch.cat([block.places.flatten() for block in blocks])
    square = (weights[places] / stds[places]).square().sum().item() / problem.temperature
    factor = tuned_factor(values, square) if config.tune_prior else 1.0
    smallest = values.min().item() + factor
    if smallest <= 0:
        raise UserError(
            f"The Hessian is not positive at this mode: the smallest eigenvalue is {smallest:.3g} "
            "with the prior, in units of its precision. Train longer (--num_epochs), or --resume "
            "with --indefinite clip."
        )
    log_likelihood = -total_nll(problem, weights) / problem.temperature
    facts["log_marginal_likelihood"] = log_likelihood + log_occam(values, square, factor)
    facts["prior_scale"] = factor**-0.5
    scales = torch.where(stds.isfinite(), stds, 0) * problem.temperature**0.5
    return gaussian(problem.network, weights, blocks, factor, scales.to(weights)), facts


def curvature_at(problem: Problem, weights: Tensor, stds: Tensor, config) -> list[Curvature]:
    """Return S H S. In a block that is no dense one all weights have the same prior."""
    network, images, labels = problem.network, problem.train_inputs, problem.data.train_labels
    if config.structure == "full":
        places = trained_places(network, weights.device)
        matrix = (
            hessian(network, weights, images, labels) if config.curvature == "hessian"
            else full_ggn(network, weights, images)
        )  # fmt: skip
        scaled = matrix[places][:, places] * stds[places] * stds[places, None]
        return [dense(scaled, places)]
    if config.structure == "diagonal":
        blocks = diagonal_ggn(network, weights, images)
    elif config.structure == "last_layer_full":
        blocks = last_layer_ggn(network, weights, images)
    else:
        blocks = kronecker_ggn(network, weights, images, config.structure == "last_layer_kron")
    return [b._replace(eigenvalues=b.eigenvalues * stds[b.places].square()) for b in blocks]


def check_dense_size(network: Network, structure: str) -> None:
    """Refuse a dense matrix that is too large, before training."""
    last_layer = sum(slot.size for slot in network.slots[-2:])  # its weights and biases
    size = {"full": network.num_weights, "last_layer_full": last_layer}
    if size.get(structure, 0) > MOST_DENSE:
        raise UserError(
            f"--structure {structure} needs a matrix of {size[structure]:,} weights squared, and "
            f"{MOST_DENSE:,} are the most: give --structure kron, or last_layer_kron."
        )


def without_negative(blocks: list[Curvature], config) -> tuple[list[Curvature], dict]:
    """Count negative eigenvalues of a Hessian as 0; those of other matrices are rounding."""
    facts = {}
    if config.curvature == "hessian":
        values = blocks[0].eigenvalues
        facts = {"num_negative": (values < 0).sum().item(), "smallest": values.min().item()}
        if config.indefinite == "refuse":
            return blocks, facts
    return [b._replace(eigenvalues=b.eigenvalues.clamp(min=0)) for b in blocks], facts


def gaussian(
    network: Network, weights: Tensor, blocks: list[Curvature], factor: float, scales: Tensor
) -> Posterior:
    """Return N(weights, scales (curvature + factor)⁻¹ scales)."""
    deviations = [(block.eigenvalues + factor).rsqrt().to(weights) for block in blocks]
    if blocks[0].right is None:
        std = torch.zeros_like(weights)
        std[blocks[0].places] = deviations[0]
        return Gaussian(weights, scales * std, network)
    parts = [
        WeightBlock(block.places, block.left.to(weights), block.right.to(weights), std)
        for block, std in zip(blocks, deviations, strict=True)
    ]
    return BlockGaussian(weights, parts, network, scales)


# ---- the marginal likelihood


def total_nll(problem: Problem, weights: Tensor) -> float:
    """Return Σ CE of the training images."""
    images, labels = problem.train_inputs, problem.data.train_labels
    probabilities = class_probabilities(problem.network, weights, images)
    return -probabilities.gather(1, labels.unsqueeze(1)).log().sum().item()


def log_occam(eigenvalues: Tensor, square: float, factor: float) -> float:
    """Return −½ δ square + ½ Σ log(δ / (λ + δ)) for the factor δ, −∞ where that is no number."""
    if eigenvalues.min().item() + factor <= 0:
        return -math.inf
    return -0.5 * (factor * square + (eigenvalues / factor).log1p().sum().item())


def tuned_factor(eigenvalues: Tensor, square: float) -> float:
    """Return the δ that maximises the marginal likelihood: the best of a grid, refined."""

    def cost(log_factor: float) -> float:
        return -log_occam(eigenvalues, square, math.exp(log_factor))

    grid = np.linspace(*np.log(PRECISION_FACTORS), 200)
    best = int(np.argmin([cost(each) for each in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    options = {"xatol": 1e-8}
    return math.exp(minimize_scalar(cost, bounds=bounds, method="bounded", options=options).x)


# ---- what the run says


def facts_of(newest: dict) -> dict[str, list[float]]:
    """Return the facts of all modes, in their order, from the last values of metrics.jsonl."""
    facts = {}
    for name in FACTS:
        modes = [key.removeprefix(f"{name}_") for key in newest if key.startswith(f"{name}_")]
        if modes:
            facts[name] = [newest[f"{name}_{mode}"] for mode in sorted(modes, key=int)]
    return facts


def remarks(facts: dict[str, list[float]], problem: Problem, config) -> list[str]:
    lines = [f"Log marginal likelihood: {listed(facts['log_marginal_likelihood'])}"]
    if config.tune_prior:
        lines.append(
            "Prior tuned by marginal likelihood: this is a posterior of another prior than the "
            f"stated one, with {listed(facts['prior_scale'])} times its deviation."
        )
    if any(facts.get("num_negative", [])):
        lines.append(
            f"Negative eigenvalues of the Hessian: {listed(facts['num_negative'])}, the smallest "
            f"{listed(facts['smallest'])} times the prior's precision; training has not quite "
            "reached a mode."
        )
    if problem.batches:
        lines.append("The curvature is that of the images as they are, without augmentation.")
    return lines


def listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
