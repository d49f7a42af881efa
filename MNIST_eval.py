"""Compare posteriors as functions and weight by weight, before and after rebasin.

The paper's Table 1 and Figure 4, and the checks behind them.

    python MNIST_eval.py                        the HMC, ensemble and VI runs of the batch
    python MNIST_eval.py --config_name quick    the same with fewer samples, draws and images
    python MNIST_eval.py --hmc runs/default/HMC-MNIST-laptop --vi none
    python MNIST_eval.py --posteriors swag=runs/default/SWAG-MNIST vi2=runs/default/VI-MNIST-long
    python MNIST_eval.py --samples mine/samples.npy        [K, d], with network.json beside it

--posteriors adds others under names of your choice: run directories, or files in them. All are
compared with --truth, which must be a set of weight vectors. --further chooses columns beyond the
paper's, which docs/compact.md explains. Networks with the EmpCov prior have other inputs, so they
are compared only under noise on dead pixels: --noise_beside EmpCov=PATH.

Leaves in its run directory

    table1.json              {column: {row: value}}, with table1_errors.json: standard errors
    predictions.npz          what every column predicts on the test images, and its mean network
    compact.npz              q_r of the truth: mean, std, permutations, transpositions, reference
    compact_<column>.npz     the same of the other ways of rebasin; low_rank.npz: mean, factor
    weight_space.npz         means and deviations, those of the others in the truth's frame
    diagnostics.json         checks, mixing, correlations, other references, the prior as a null

and figures. If it is stopped while the truth's samples are rebased, `--resume` keeps what is done.
"""

from dataclasses import dataclass
from pathlib import Path

from papers.compact import limits, weight_figures
from papers.compact.limits import limit_tables
from papers.compact.tables import (
    check_tables,
    metrics_of_tables,
    published_table1,
    score_records,
    score_table,
    ways_table,
)
from utils.data.datasets import load_dataset
from utils.evaluation.evaluate import (
    Candidate,
    check_candidates,
    check_data,
    check_names,
    evaluate,
    named_paths,
    open_candidate,
)
from utils.evaluation.setting import EvaluationConfig
from utils.report.tables import Table
from utils.runs.files import read_mapping
from utils.runs.lookup import NEWEST, PastRun, check_kind, existing, locate
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import option
from utils.settings.errors import UserError

KIND = "eval"  # of its runs: what their directories begin with


OPTIONS = {  # that take runs: their kinds, and the scripts that make them
    "hmc": ("HMC", "MNIST_HMC.py"),
    "ensemble": ("ensemble", "MNIST_Ensemble.py"),
    "vi": ("VI", "MNIST_VI.py"),
}


@dataclass(frozen=True, kw_only=True)
class EvalConfig(EvaluationConfig):
    config_name: str = option("laptop", "named settings: configs/MNIST_eval/NAME.yaml")
    # Changeable, as they are paths: the run remembers which runs it is made of.
    hmc: str = option(NEWEST, "run of HMC; newest: the batch's finished one; none", changeable=True)
    ensemble: str = option(NEWEST, "run of the ensemble, newest, or none", changeable=True)
    vi: str = option(NEWEST, "run of VI, newest, or none", changeable=True)
    posteriors: list[str] = option(
        [], "more posteriors under names of your choice", metavar="NAME=PATH", changeable=True
    )
    noise_beside: list[str] = option(
        [], "posteriors of any network or prior, for the figure of noise on dead pixels only",
        metavar="NAME=PATH", changeable=True,
    )  # fmt: skip
    samples: str | None = option(None, "samples.npy beside network.json, in place of HMC's")
    truth: str = option("hmc", "name of the posterior that all others are compared with")
    discard: float = option(0.0, "share of the truth's chains left out at their start", minimum=0)
    num_samples: int = option(
        1000, "largest number of the truth's samples to use, evenly spaced", minimum=2
    )


def main(config: EvalConfig) -> None:
    candidates = find_candidates(config)
    truth = candidates[config.truth]
    paths = named_paths(config, config.noise_beside, "--noise_beside")
    beside = {name: open_candidate(name, name, path) for name, path in paths.items()}
    opened = candidates | beside
    inputs = {input_name(name): each.identity for name, each in opened.items()}
    device = begin(config, KIND, inputs)
    num_train = truth.run.data.get("num_train")
    data = load_dataset(config.dataset, config.data_dir, num_train)
    check_data(truth, data)
    run = open_run(config, KIND, device, inputs, num_train=num_train)
    described = about(candidates, config.truth)
    evaluate(candidates, config.truth, data.to(device), run, described, beside)
    report(run)


# ---- the posteriors to compare


def find_candidates(config: EvalConfig) -> dict[str, Candidate]:
    """Open all posteriors by name, the truth first."""
    paths = named_paths(config, config.posteriors)
    if config.samples:
        if config.hmc != NEWEST:
            raise UserError("--samples stands in for HMC's: give either --hmc or --samples.")
        paths["hmc"] = existing(config, config.samples)
    names = list(dict.fromkeys([config.truth, *OPTIONS, *paths]))
    check_names(names)
    candidates: dict[str, Candidate] = {}
    for name in names:
        like = candidates[config.truth].run if candidates else None
        if candidate := open_named(config, name, paths.get(name), like):
            candidates[name] = candidate
    check_candidates(candidates, config.truth)
    rows = [[each.title, str(each.run.path), str(each)] for each in candidates.values()]
    Table(["posterior", "run", "weights"], rows).print()
    return candidates


def open_named(
    config: EvalConfig, name: str, path: Path | None, like: PastRun | None
) -> Candidate | None:
    """Open the posterior at a path, or else in the run that an option asks for, if it does."""
    is_truth, title = name == config.truth, name
    remedy = "give the path of another run" + ("" if is_truth else ", or leave it out")
    if path and name == "hmc" and config.samples:
        title = "samples"
    elif not path and name in OPTIONS:
        title = OPTIONS[name][0]
        path = locate(config, getattr(config, name), *OPTIONS[name], like, optional=not is_truth)
        remedy = "give the path of another run" + ("" if is_truth else f", or --{name} none")
        if path:
            other = f"give another --{name}, or --posteriors NAME={path} with a name of your choice"
            check_kind(path, [OPTIONS[name][0]], other)
    if path:
        thinning = {"discard": config.discard, "most": config.num_samples} if is_truth else {}
        return open_candidate(name, title, path, remedy, **thinning)
    if is_truth:
        raise UserError(
            f"Everything is compared with {name}: give --posteriors {name}=PATH, or another "
            "--truth."
        )
    return None


def input_name(name: str) -> str:
    """Return what meta.json calls a run that the evaluation is made of."""
    return OPTIONS[name][0] if name in OPTIONS else name


def about(candidates: dict[str, Candidate], truth: str) -> dict:
    """Return what diagnostics.json says about where the posteriors come from."""
    return {
        "sources": {input_name(name): str(each.run.path) for name, each in candidates.items()},
        "truth": truth,
        "label": candidates[truth].title,
        "names": {name: each.title for name, each in candidates.items()},
    }


# ---- reporting


def report(run: Run) -> None:
    """Save the figures; print the table beside the paper's, and the checks."""
    table, errors, diagnostics = (
        read_mapping(run.path(f"{name}.json"))
        for name in ("table1", "table1_errors", "diagnostics")
    )
    names = diagnostics["names"]
    if diagnostics["correlations"]["after"]:
        for figure in (weight_figures.weight_means, weight_figures.weight_deviations):
            figure.save(run, names)
    weight_figures.transpositions_along_chain.save(run)
    if diagnostics.get("limits", {}).get("dead_pixels"):
        limits.noise_on_dead_pixels.save(run)
    published = published_table1(run.config.dataset) if diagnostics["label"] == "HMC" else {}
    for name, metrics in zip(("table1", "calibration"), metrics_of_tables(), strict=True):
        run.log_records(name, score_records(table, errors, published, metrics, names))
        score_table(table, errors, published, metrics, names).print()
    for check in [
        ways_table(diagnostics, table),
        *check_tables(diagnostics),
        *limit_tables(diagnostics),
    ]:
        check.print() if isinstance(check, Table) else print(f"\n{check}")
    run.finish({"table1": table})
    print(f"\nSaved in {run.directory}")


CONFIG = EvalConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
