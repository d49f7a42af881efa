"""A run of HMC: diagnostics in the report, and its card, also that of its gold standard.

The facts of a card are plain JSON, so that a gold file can hold them.
"""

from pathlib import Path
from statistics import fmean

from utils.evaluation.diagnostics import (
    FOLLOW_LABELS,
    LABELS_REMARK,
    MAX_RHAT,
    MIN_DRAWS,
    Quantities,
    diagnose_all,
    energy_balance,
    shortfalls,
    slow_groups,
)
from utils.networks.network import Network
from utils.report.card import portable
from utils.report.results import Results, RunResult, or_none
from utils.report.tables import Table, number, with_error
from utils.runs.files import UNREADABLE, jsonable, read_mapping, read_records
from utils.runs.lookup import PastRun
from utils.runs.progress import duration
from utils.settings.errors import UserError, reason
from utils.settings.wording import plural

import numpy as np
from torch import Tensor

QUANTITY_TITLES = {
    "test_log_likelihood": "log likelihood of the test images",
    "train_nll": "NLL of the training images",
    "mean_squared_weight": "mean square of the weights",
    "probability": "probabilities of some test images",
    "weights": "random projections of all weights",
    "output_layer": "random projections of the output layer's weights",
    "invariants": "functionals of the weights without labels of units",
}


def chain_tables(run: RunResult) -> list[Table | str]:
    """Return how the chain ran, and R-hat and ESS of each group of quantities."""
    found = run.json("diagnostics.json")
    head = ["quantity", "largest R-hat", "smallest bulk ESS", "smallest tail ESS",
            "smallest ESS of squared deviations", "median bulk ESS",
            "median bulk ESS per hour"]  # fmt: skip
    parts = ("smallest_ess_bulk", "smallest_ess_tail", "smallest_ess_squares", "median_ess_bulk",
             "median_ess_bulk_per_hour")  # fmt: skip
    rows = [
        [
            QUANTITY_TITLES.get(name, name.replace("_", " ")),
            number(group["largest_rhat"], 3) if group["largest_rhat"] else "infinite",
            *(number(group.get(part), 0) for part in parts),
        ]
        for name, group in found["groups"].items()
        if group
    ]
    kept = [record for record in run.records("trace.jsonl") if not record["burnin"]]
    ran = how_they_ran(kept)
    chains, draws, hours = (found[name] for name in ("chains", "draws_per_chain", "hours"))
    so_far = "" if run.finished else " so far"
    summary = [
        ["chains", str(chains)],
        ["samples of each", f"{draws}{so_far}"],
        ["sampling time", duration(3600 * hours)],
        ["samples per hour", number(chains * draws / hours, 0)],
        ["acceptance", number(ran["acceptance"], 2)],
        ["divergent transitions", str(ran["divergences"])],
        ["mean of exp(−ΔH) over all proposals (1 if energies are right and volume is preserved)",
         with_error(*ran["energy_balance"], 3)],
    ]  # fmt: skip
    followed = [record for record in kept if record.get("followed_back")]
    if followed:
        gaps = [record["reversal_gap"] for record in followed]
        worst = "infinite" if None in gaps else f"{number(max(map(abs, gaps)), 3)} nats"
        summary.append(
            ["trajectories followed back: largest |ΔH there + ΔH back|",
             f"{len(followed)}: {worst}"]
        )  # fmt: skip
    tables = [Table(["", "value"], summary), Table(head, rows, title="Mixing")]
    return [*tables, LABELS_REMARK] if found["groups"].keys() & FOLLOW_LABELS else tables


def how_they_ran(transitions: list[dict]) -> dict:
    """Return what the records of transitions say of the integrator."""
    return {
        "acceptance": fmean(each["accept_prob"] for each in transitions),
        "divergences": sum(each["divergent"] for each in transitions),
        "energy_balance": list(energy_balance([each["delta_energy"] for each in transitions])),
    }


def mixing_warning(results: Results) -> str:
    """Return a sentence if R-hat says that HMC has not mixed in every respect, else ""."""
    run = results.runs["HMC"]
    slow = or_none(lambda: slow_groups(run.json("diagnostics.json")["groups"]))
    if not slow:
        return ""
    return (
        f"The chain has not mixed in every respect: R-hat is above {MAX_RHAT} for "
        f"{', '.join(slow)}. A longer chain may change what depends on these."
    )


def progress(run: RunResult) -> str:
    """Return the run's kind, and for chains how many of their samples are there."""
    layout = or_none(lambda: run.json("chains.json"))
    if layout is None:
        return run.kind
    stored, asked = layout["stored_per_chain"], layout["samples_per_chain"]
    return f"{run.kind} ({stored} of {asked} samples of a chain)"


# ---- the facts of a card

OF_SAMPLER = (
    "num_chains", "num_samples", "num_burnin", "store_every", "step_size", "adapt_step_size",
    "target_acceptance", "trajectory_length", "num_steps", "max_steps", "jitter", "mass", "start",
    "force", "seed",
)  # fmt: skip


def is_chain(run: PastRun) -> bool:
    """Return whether a run is HMC's, with all that a card needs."""
    return run.kind == "HMC" and (run.directory / "quantities.npy").exists()


def chain_facts(run: PastRun, network: Network, test_labels: Tensor) -> dict:
    """Return what a card says of a run of HMC."""
    config, sessions = run.config, run.meta.get("sessions") or [{}]
    return jsonable({
        "posterior": {
            "network": str(network), "dataset": run.dataset,
            "num_train": run.data.get("num_train"),
            "prior": config.get("prior", "independent"),
            "prior_std": config.get("prior_std", 1.0), "weight_decay": config.get("weight_decay"),
            "temperature": config.get("temperature", 1.0),
        },
        "sampler": {name: config[name] for name in OF_SAMPLER if config.get(name) is not None},
        "checks": _checks(run, network, test_labels),
        "origin": {
            "command": portable(sessions[0].get("command", "")),
            "commit": sessions[-1].get("git_commit"), "date": sessions[-1].get("date"),
            "versions": sessions[-1].get("versions"), "processor": sessions[-1].get("processor"),
        },
    })  # fmt: skip


def _checks(run: PastRun, network: Network, test_labels: Tensor) -> dict:
    folder, layout = run.directory, _layout(run)
    chains, stored = layout["num_chains"], layout["stored_per_chain"]
    if stored < MIN_DRAWS:
        raise UserError(
            f"{folder} has {plural(stored, 'sample')} of each chain, too few to be diagnosed."
        )
    quantities = Quantities(network, test_labels, run.config["seed"])
    measured = _array(folder / "quantities.npy", chains, quantities.widths)
    samples = _array(folder / "samples.npy", chains, (network.num_weights,))
    whole = quantities.complete(measured, samples)
    draws = whole.reshape(chains, -1, len(quantities.names))[:, :stored]
    left_out = layout.get("left_out", [])
    found = diagnose_all(np.delete(draws, left_out, axis=0), quantities.names, hours=1.0)
    kept = [t for t in _transitions(folder / "trace.jsonl") if t["chain"] not in left_out]
    ran, steps = how_they_ran(kept), sum(each["num_steps"] for each in kept)
    names = ("largest_rhat", "smallest_ess_bulk", "smallest_ess_tail", "smallest_ess_squares")
    return {
        "chains": chains - len(left_out), "left_out": len(left_out), "samples_per_chain": stored,
        "log_weight_gap": layout.get("log_weight_gap"),  # not in runs of earlier versions
        "log_weight_spread": layout.get("log_weight_spread"),
        "groups": {
            group: {name: numbers[name] for name in names}
            for group, numbers in found["groups"].items() if numbers
        },
        "shortfalls": shortfalls(found),
        "acceptance": ran["acceptance"], "divergences": ran["divergences"],
        "leapfrog_steps": steps,
        "step_size": fmean(each["step_size"] for each in kept),
        "violations_per_step": sum(each["violations"] for each in kept) / steps,
        "energy_balance": ran["energy_balance"],
    }  # fmt: skip


def _layout(run: PastRun) -> dict:
    """Return chains.json, which with the seed of config.yaml says how the chains were made."""
    layout = read_mapping(run.directory / "chains.json")
    for file, known, keys in (
        ("chains.json", layout, ("num_chains", "stored_per_chain")),
        ("config.yaml", run.config, ("seed",)),
    ):
        if not all(isinstance(known.get(key), int) for key in keys):
            raise _incomplete(run.directory / file, f"it needs {' and '.join(keys)}")
    return layout


def _array(path: Path, chains: int, widths: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r")
        rows, width = array.shape
        whole = width in widths and array.dtype.kind == "f" and rows % chains == 0
    except UNREADABLE as error:
        raise _incomplete(path, reason(error)) from None
    if not whole:
        raise _incomplete(path, f"it is not of {chains} chains of this network")
    return array


def _transitions(path: Path) -> list[dict]:
    """Return the records of the transitions after burn-in."""
    try:
        kept = [each for each in read_records(path) if not each["burnin"]]
    except UNREADABLE as error:
        raise _incomplete(path, reason(error)) from None
    if not kept:
        raise _incomplete(path, "it has no transitions after burn-in")
    return kept


def _incomplete(path: Path, why: str) -> UserError:
    return UserError(f"Cannot check the chains by {path}: {why}. Copy the whole run again.")


# ---- the text of a card


def chain_sections(facts: dict) -> str:
    """Return the sections on posterior, sampler and checks, in Markdown."""
    return "\n\n".join([_posterior(facts), _sampler(facts), _check_table(facts["checks"])])


def _posterior(facts: dict) -> str:
    posterior = facts["posterior"]
    sigma = posterior["prior_std"]
    prior = f"N(0, σ²) on every weight and bias with σ = {_listed(sigma)}"
    if posterior["weight_decay"] is not None:
        prior = f"that of a weight decay of {posterior['weight_decay']:g} of the mean cross-entropy"
    if posterior.get("prior") == "empcov":
        prior += "; on first-layer weights times the covariance of the inputs (EmpCov)"
    images = f"the first {posterior['num_train']:,}" if posterior["num_train"] else "all"
    return (
        "## Posterior\n\n"
        "p(w | data) ∝ exp(−U(w)/T) with U(w) = Σ cross-entropy + ½ Σ w²/σ², of "
        f"{posterior['network']} on {images} training images of {posterior['dataset']}, with "
        "pixels in [0, 1] unless the network normalises them. "
        f"Prior: {prior}. Temperature: T = {posterior['temperature']:g}."
    )


def _listed(value) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, list) else f"{value:g}"


def _sampler(facts: dict) -> str:
    origin = facts["origin"]
    rows = [[name, str(value)] for name, value in facts["sampler"].items()]
    versions = origin["versions"] or {}
    return "\n".join([
        "## Sampler", "",
        "Full-batch Hamiltonian Monte Carlo with the leapfrog integrator and an accept step.", "",
        f"    {origin['command']}", "",
        Table(["setting", "value"], rows).markdown(), "",
        f"Commit {origin['commit']}, PyTorch {versions.get('torch')}, {origin['processor']}, "
        f"{origin['date']}.",
    ])  # fmt: skip


def _check_table(checks: dict) -> str:
    balance, error = checks["energy_balance"]
    stored = (
        f"{plural(checks['chains'], 'chain')} of {plural(checks['samples_per_chain'], 'sample')}"
    )
    head = ["quantity", "largest R-hat", "smallest bulk ESS", "tail ESS", "ESS of squares"]
    rows = [
        [QUANTITY_TITLES.get(name, name), *_cells(group)]
        for name, group in checks["groups"].items()
    ]
    lines = [
        "## Checks", "",
        stored + _left_out(checks) + ".", "",
        Table(head, rows).markdown(), "",
        LABELS_REMARK, "",
        f"Acceptance {checks['acceptance']:.2f}, {plural(checks['divergences'], 'divergence')}, "
        f"{checks['leapfrog_steps']:,} leapfrog steps of {checks['step_size']:.3g}, of which the "
        f"listed force overlooked points in a share of {checks['violations_per_step']:.2g}. "
        f"Mean of exp(−ΔH): {balance:.3f} ± {error:.3f}, 1 if energies are right and volume is "
        "preserved.", "",
        _verdict(checks["shortfalls"]),
    ]  # fmt: skip
    return "\n".join(lines)


def _left_out(checks: dict) -> str:
    if not checks.get("left_out"):
        return ""
    text = (
        f"; {checks['left_out']} more left out, in other regions, which annealed importance "
        "sampling estimates to hold next to nothing of the posterior"
    )
    if checks.get("log_weight_gap") is not None:
        text += (
            f" (e^−{checks['log_weight_gap']:.0f}; log weights of chains that agree have a "
            f"standard deviation of {checks['log_weight_spread']:.1f} nats)"
        )
    return text


def _cells(group: dict) -> list[str]:
    sizes = [group[f"smallest_ess_{part}"] for part in ("bulk", "tail", "squares")]
    texts = ["–" if size is None else f"{size:.0f}" for size in sizes]
    rhat = "infinite" if group["largest_rhat"] is None else f"{group['largest_rhat']:.3f}"
    return [rhat, *texts]


def _verdict(missing: list[str]) -> str:
    criteria = (
        "the criteria of a reference (several chains, R-hat at most 1.01 and bulk ESS at least 400 "
        "of functions and of functionals without labels; Vehtari et al. 2021)"
    )
    if not missing:
        return f"The chains meet {criteria}."
    return f"**Preliminary.** The chains do not meet {criteria}: {'; '.join(missing)}."


def gold_card(about: dict, floor: str, path: Path, command: str) -> str:
    """Return the card of a gold file; `command` compares a file of predictions with it."""
    rows = [[name, f"{value:.4f}"] for name, value in about["scores"].items()]
    scores = Table(["score", "value"], rows).markdown()
    sections = [
        f"# {about['name']}",
        f"Predictions of HMC on the {about['num_test']:,} test images of {about['dataset']}, for "
        "comparison with those of other methods on the same posterior.",
        "## Use\n\n"
        f"    {command}\n\n"
        "`mine.npz` has an array of probabilities, a row for each test image in the order of the "
        "files of the data set, and if you like the `labels`, whose order is then checked. "
        f"Without this repository: `np.load('{path.name}')` has `labels` and `log_probabilities` "
        f"[{about['num_parts']}, {about['num_test']}, {about['num_classes']}] in float16, of the "
        f"average predictions of each {about['part']}. Take the exponential in float64, divide "
        "rows by their sum, and average over the first axis. SHA-256 of the labels as bytes: "
        f"`{about['labels_sha256']}`.",
        f"## HMC's scores\n\n{scores}\n\n{floor}",
        chain_sections(about),
        f"## Licence\n\n{about['licence']}",
    ]
    return "\n\n".join(sections) + "\n"
