"""A run of HMC: diagnostics in the report, and its card, also that of its gold standard.

The facts of a card are plain JSON, so that a gold file can hold them.
"""

import re
from pathlib import Path
from statistics import fmean
from textwrap import wrap

from utils.data.datasets import Dataset
from utils.evaluation.diagnostics import (
    FOLLOW_LABELS,
    LABELS_REMARK,
    MAX_MISSED,
    MAX_RHAT,
    MIN_DRAWS,
    Quantities,
    WaysBack,
    diagnose_all,
    energy_balance,
    shortfalls,
    slow_groups,
    ways_back,
)
from utils.networks.mlp import MLP
from utils.networks.network import Network
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
        ["trajectories followed back", back_text(ran["ways_back"])],
    ]  # fmt: skip
    tables = [Table(["", "value"], summary), Table(head, rows, title="Mixing")]
    return [*tables, LABELS_REMARK] if found["groups"].keys() & FOLLOW_LABELS else tables


def how_they_ran(transitions: list[dict]) -> dict:
    """Return what the records of transitions say of the integrator."""
    return {
        "acceptance": fmean(each["accept_prob"] for each in transitions),
        "divergences": sum(each["divergent"] for each in transitions),
        "energy_balance": list(energy_balance([each["delta_energy"] for each in transitions])),
        "ways_back": ways_back(transitions),
    }


def back_text(back: WaysBack) -> str:
    """Say whether trajectories came back."""
    if not back.followed:
        return "none followed back"
    gap = "infinite" if back.largest_gap is None else f"{back.largest_gap:.2g} nats"
    return (
        f"{back.followed:,} followed back, {back.missed:,} missed and rejected; largest "
        f"|ΔH there + ΔH back|: {gap}"
    )


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

# Settings of a run: those of the posterior, those of the chain, and those of an mlp alone.
OF_POSTERIOR = (
    "dataset", "network", "width", "normalise", "hidden_sizes", "activation", "num_train",
    "num_valid", "prior", "prior_std", "weight_decay", "temperature", "fixed_share",
)  # fmt: skip
OF_SAMPLER = (
    "num_chains", "num_samples", "num_burnin", "store_every", "step_size", "adapt_step_size",
    "target_acceptance", "trajectory_length", "num_steps", "max_steps", "grow_trajectories",
    "jitter", "mass", "start", "anchored_epochs", "anneal_from", "force", "safe_margin",
    "reversal_every", "matmul", "seed",
)  # fmt: skip
OF_MLP = ("hidden_sizes", "activation")
COMMAND_COLUMNS, NO_BREAK = 88, "\0"  # a flag and its value stay on one line


def is_chain(run: PastRun) -> bool:
    """Return whether a run is HMC's, with all that a card needs."""
    return run.kind == "HMC" and (run.directory / "quantities.npy").exists()


def chain_facts(run: PastRun, network: Network, data: Dataset) -> dict:
    """Return what a card says of a run of HMC on this data set."""
    config, sessions = run.config, run.meta.get("sessions") or [{}]
    published = network.normalisation == "published"
    pixels = data.normalisation("published")._asdict() if published else None
    return jsonable({
        "posterior": {
            "network": str(network), "architecture": network.describe(), "dataset": run.dataset,
            "num_train": run.data.get("num_train"), "num_valid": config.get("num_valid", 0),
            "pixels": pixels,
            "prior": config.get("prior", "independent"),
            "prior_std": config.get("prior_std", 1.0), "weight_decay": config.get("weight_decay"),
            "temperature": config.get("temperature", 1.0),
            "fixed_share": config.get("fixed_share", 0.0),
        },
        "sampler": {name: config[name] for name in OF_SAMPLER if config.get(name) is not None},
        "checks": _checks(run, network, data.test_labels),
        "origin": {
            "command": explicit_command(sessions[0].get("command", ""), config),
            "commits": list(dict.fromkeys(each.get("git_commit") for each in sessions)),
            "date": sessions[-1].get("date"),
            "versions": sessions[-1].get("versions"), "processor": sessions[-1].get("processor"),
        },
    })  # fmt: skip


def explicit_command(command: str, config: dict) -> str:
    """Return a command that says all settings of a run, whatever defaults and YAML files say."""
    foreign = OF_MLP if config.get("network") != MLP.name else ()
    words = [command.partition(" --")[0]]
    for name in (*OF_POSTERIOR, *OF_SAMPLER):
        if name in config and name not in foreign:
            words.append(_flag(name, config[name]))
    return " ".join(words)


def _flag(name: str, value) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if isinstance(value, list):
        value = ("," if name == "prior_std" else " ").join(map(str, value))
    return f"--{name} {'none' if value is None else value}"


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
        "shortfalls": shortfalls(found, ran["ways_back"]),
        "acceptance": ran["acceptance"], "divergences": ran["divergences"],
        "leapfrog_steps": steps,
        "step_size": fmean(each["step_size"] for each in kept),
        "violations_per_step": sum(each["violations"] for each in kept) / steps,
        "energy_balance": ran["energy_balance"], "ways_back": ran["ways_back"]._asdict(),
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
    each = " of the layers in turn" if isinstance(sigma, list) else ""
    prior = f"N(0, σ²) on every weight and bias with σ = {_listed(sigma)}{each}"
    if posterior["weight_decay"] is not None:
        prior = f"that of a weight decay of {posterior['weight_decay']:g} of the mean cross-entropy"
    if posterior.get("prior") == "empcov":
        prior += "; on first-layer weights times the covariance of the inputs (EmpCov)"
    images = f"the first {posterior['num_train']:,}" if posterior["num_train"] else "all"
    if posterior["num_valid"]:
        images += f" but the last {posterior['num_valid']:,}"
    held = posterior["fixed_share"]
    fixed = f" A share of {held:g} of the weights is held at a draw from the prior." if held else ""
    return (
        "## Posterior\n\n"
        "p(w | data) ∝ exp(−U(w)/T) with U(w) = Σ cross-entropy + ½ Σ w²/σ², of "
        f"{posterior['network']} on {images} training images of {posterior['dataset']}, with "
        f"pixels in [0, 1]{_scaled(posterior['pixels'])}. "
        f"Prior: {prior}. Temperature: T = {posterior['temperature']:g}.{fixed}"
    )


def _scaled(pixels: dict | None) -> str:
    """Say what a network's inputs are made of pixels in [0, 1]."""
    if pixels is None:
        return " as they are"
    return f", less {_listed(pixels['mean'])} and divided by {_listed(pixels['std'])}"


def _listed(value) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, list) else f"{value:g}"


def _sampler(facts: dict) -> str:
    origin = facts["origin"]
    versions = origin["versions"] or {}
    flags = re.split(" (?=--)", origin["command"])
    lines = wrap(
        " ".join(flag.replace(" ", NO_BREAK) for flag in flags), COMMAND_COLUMNS,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    command = " \\\n        ".join(lines).replace(NO_BREAK, " ")
    commits = ", then ".join(str(commit)[:12] for commit in origin["commits"])
    return "\n".join([
        "## Sampler", "",
        "Full-batch Hamiltonian Monte Carlo with the leapfrog integrator and an accept step, at "
        f"commit {commits}, by PyTorch {versions.get('torch')} on {origin['processor']}, "
        f"{origin['date']}:", "",
        f"    {command}",
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
        f"Trajectories: {back_text(WaysBack(**checks['ways_back']))}.", "",
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
        "of functions and of functionals without labels, Vehtari et al. 2021; at most "
        f"{100 * MAX_MISSED:g} % of trajectories that do not return, with 95 % confidence)"
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
