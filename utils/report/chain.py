"""Diagnostics of a Markov chain, as the report shows them."""

from utils.evaluation.diagnostics import (
    FOLLOW_LABELS,
    LABELS_REMARK,
    MAX_RHAT,
    energy_balance,
    slow_groups,
)
from utils.report.results import Results, RunResult, or_none
from utils.report.tables import Table, number
from utils.runs.progress import duration

NAMES = {
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
    parts = (
        "smallest_ess_bulk",
        "smallest_ess_tail",
        "smallest_ess_squares",
        "median_ess_bulk",
        "median_ess_bulk_per_hour",
    )
    rows = [
        [
            NAMES.get(name, name.replace("_", " ")),
            number(group["largest_rhat"], 3) if group["largest_rhat"] else "infinite",
            *(number(group.get(part), 0) for part in parts),
        ]
        for name, group in found["groups"].items()
        if group
    ]
    kept = [record for record in run.records("trace.jsonl") if not record["burnin"]]
    accepted = sum(record["accept_prob"] for record in kept) / len(kept)
    divergent = sum(record["divergent"] for record in kept)
    balance, error = energy_balance([record["delta_energy"] for record in kept])
    chains, draws, hours = (found[name] for name in ("chains", "draws_per_chain", "hours"))
    so_far = "" if run.finished else " so far"
    summary = [
        ["chains", str(chains)],
        ["samples of each", f"{draws}{so_far}"],
        ["sampling time", duration(3600 * hours)],
        ["samples per hour", number(chains * draws / hours, 0)],
        ["acceptance", number(accepted, 2)],
        ["divergent transitions", str(divergent)],
        ["mean of exp(−ΔH) over all proposals (1 if energies are right and volume is preserved)",
         f"{number(balance, 3)} ± {number(error, 3)}"],
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
