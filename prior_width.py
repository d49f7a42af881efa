"""Which prior makes HMC the better predictor, and with which does the compact form work?

Runs of HMC on the same network and images with priors N(0, σ²) of different width σ are compared:
accuracy, NLL and calibration of HMC, its cost, and q_r, the Gaussian fitted after rebasin.

    python sweep.py configs/sweeps/prior_width_tiny.yaml          the runs, for 784-8-10
    python prior_width.py --run_batch_name prior_width_tiny       all runs of HMC in a batch
    python prior_width.py --runs DIRECTORY DIRECTORY              these

Takes a minute for 100 samples of each. Leaves in its run directory widths.json, the figure
prior_width.png and .pdf, and summary.json.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from papers.compact import hmc_figures
from utils.data.datasets import load_dataset
from utils.evaluation.evaluate import (
    Candidate,
    TableErrors,
    open_candidate,
    prior_in,
    stated_prior_in,
    temperature_of,
)
from utils.evaluation.metrics import scores
from utils.evaluation.predictions import REBASED, SAMPLE, Column, predict_draws
from utils.evaluation.setting import EvaluationConfig, Setting
from utils.evaluation.views import align_set, fit_moments
from utils.networks.registry import inputs_for
from utils.posteriors.posterior import is_set
from utils.quality.calibration import calibrated_errors
from utils.runs.files import read_mapping, read_records
from utils.runs.lookup import PastRun, existing
from utils.runs.run import begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.settings.wording import plural

KIND = "prior_width"


@dataclass(frozen=True, kw_only=True)
class PriorWidthConfig(EvaluationConfig):
    runs: list[str] = option(
        [], "runs of HMC with different priors; by default all finished ones of the batch",
        metavar="DIRECTORY", changeable=True,
    )  # fmt: skip
    num_samples: int | None = option(
        None, "largest number of each run's samples to use, evenly spaced; none: all", minimum=2
    )


def main(config: PriorWidthConfig) -> None:
    num_points = len(load_dataset(config.dataset, config.data_dir).train_labels)
    candidates = open_runs(config, num_points)
    inputs = {name: each.identity for name, each in candidates.items()}
    device = begin(config, KIND, inputs)
    num_train = next(iter(candidates.values())).run.data.get("num_train")
    data = load_dataset(config.dataset, config.data_dir, num_train)
    run = open_run(config, KIND, device, inputs, num_train=num_train)
    widths = []
    for candidate in sorted(candidates.values(), key=lambda c: -width_of(c, num_points)):
        ready = inputs_for(candidate.posterior.network, data).to(device)
        widths.append(study(candidate, ready, config))
        run.log(**{name: widths[-1][name] for name in ("prior_std", "num_samples")})
    run.save_json("widths.json", widths)
    run.save_figure("prior_width", hmc_figures.prior_width(run.path("widths.json")))
    run.log_records("widths", widths)
    run.finish({"widths": widths})
    hmc_figures.width_table(widths).print()
    print(f"Saved in {run.directory}")


# ---- the runs


def open_runs(config: PriorWidthConfig, num_points: int) -> dict[str, Candidate]:
    """Open the runs by their prior's σ; they differ in nothing else that a posterior depends on.

    `num_points` is the number of training images of runs that take all.
    """
    if config.runs:
        paths = [existing(config, given) for given in config.runs]
    else:
        batch = Path(config.out_dir) / config.run_batch_name
        paths = [done.parent for done in sorted(batch.glob(f"HMC-{config.dataset}-*/DONE"))]
    opened = [open_candidate("hmc", str(path), path, most=config.num_samples) for path in paths]
    named = {str(stated_prior_in(each, num_points)): each for each in opened}
    if len(named) < max(2, len(opened)):
        raise UserError(
            "This compares runs of HMC with different priors, one of each, but these are "
            f"{plural(len(opened), 'run')} with {plural(len(named), 'prior')}: give other --runs, "
            "or the --run_batch_name of a sweep over priors."
        )
    first, *others = (each.run for each in opened)
    for other in others:
        if not other.matches(first):
            raise UserError(f"{other} has another network or other images than {first}.")
    for each in opened:
        if not is_set(each.posterior) or each.run.kind != "HMC":
            raise UserError(f"{each.run} is no run of HMC.")
    return named


def width_of(candidate: Candidate, num_points: int) -> float:
    """Return σ of the prior, the geometric mean if layers differ."""
    return geometric_mean(stated_prior_in(candidate, num_points).stds)


# ---- one of them


def study(candidate: Candidate, data, config: PriorWidthConfig) -> dict:
    """Return scores of HMC, q_r and μ_r with their errors, and what an effective sample costs."""
    num_points = len(data.train_labels)
    posterior, prior = candidate.posterior, prior_in(candidate, num_points)
    stated = stated_prior_in(candidate, num_points)
    setting = Setting(posterior.network, data, config, prior.tempered(temperature_of(candidate)))
    aligned = align_set(setting, posterior, str(stated))
    columns = {"hmc": Column("hmc", SAMPLE), "q_r": Column("hmc", REBASED)}
    fit = fit_moments(aligned.rebased_blocks)
    predictions = {
        columns["hmc"]: aligned.predictions,
        columns["q_r"]: predict_draws(
            posterior.network, fit.posterior, data.test_images, config.num_draws,
            config.num_blocks, generator(config.seed, "draws"),
        ),
    }  # fmt: skip
    chains = {"hmc": posterior.num_chains}
    fits = {columns["q_r"]: fit}
    errors = TableErrors(setting, predictions, fits, chains, columns["hmc"]).table()
    truth = predictions[columns["hmc"]]
    null = calibrated_errors(truth.average().cpu(), generator(config.seed, "calibrated"))
    return {
        "prior_std": width_of(candidate, num_points),
        "stds": stated.stds,
        "num_samples": len(posterior),
        **{
            name: {
                "values": scores(predictions[column].compared(truth, data.test_labels)),
                "errors": errors[column],
            }
            for name, column in columns.items()
        },
        "calibrated_ece": null.mean().item(),
        "average_std": (fit.posterior.std.double() / prior.std).mean().item(),
        "cost": cost_of(candidate.run),
    }


def cost_of(run: PastRun) -> dict:
    """Return leapfrog steps after burn-in, in all and for an effective sample, and mixing."""
    kept = [each for each in read_records(run.directory / "trace.jsonl") if not each["burnin"]]
    steps = sum(each["num_steps"] for each in kept)
    groups = read_mapping(run.directory / "diagnostics.json")["groups"]
    function, worst = groups["test_log_likelihood"], groups["probability"]
    return {
        "steps": steps,
        "steps_per_effective_sample": steps / function["smallest_ess_bulk"],
        "steps_per_effective_sample_of_worst_probability": steps / worst["smallest_ess_bulk"],
        "ess": function["smallest_ess_bulk"],
        "largest_rhat": max(group["largest_rhat"] for group in (function, worst)),
        "step_size": kept[-1]["step_size"],
    }


CONFIG = PriorWidthConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
