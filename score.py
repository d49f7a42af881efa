"""Score predictions beside those of HMC: agreement, TV, NLL, ECE and Brier with standard errors.

    python score.py mine.npz --gold mnist-tiny                    probabilities [10000, 10]
    python score.py runs/default/VI-MNIST-tiny --gold mnist-tiny  a run, or several
    python score.py predictions.npz --array vi --gold mine.npz    an array of a file; a gold file

mine.npz (numpy.savez) has an array of probabilities, a row for each test image in the order of the
data set's files. If it has `labels` as well, their order is checked. An .npy with the probabilities
alone will do. A run directory predicts with samples or draws of its posterior.

Gold standards are in results/gold/, each with a card; `python checkpoints.py gold RUN` makes one of
a run of HMC.
"""

import argparse
import math
from pathlib import Path

from utils.data.datasets import load_dataset
from utils.evaluation.metrics import METRICS
from utils.evaluation.predictions import PartPredictions, predict_draws, predict_samples
from utils.networks.network import Network
from utils.networks.registry import inputs_for
from utils.posteriors.files import open_posterior
from utils.posteriors.posterior import is_set
from utils.posteriors.prior import stated_prior
from utils.quality.calibration import calibrated_errors
from utils.quality.gold import (
    Gold,
    Scored,
    checksum_of_labels,
    find_gold,
    floor,
    floor_text,
    looks_shuffled,
    open_predictions,
    read_gold,
    score_beside,
)
from utils.report.tables import Table, with_error
from utils.runs.files import jsonable, save_json
from utils.runs.lookup import PastRun
from utils.runs.script import ends_in_a_sentence
from utils.runs.seeding import generator
from utils.settings.config import Parser
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch

GOLD_FOLDER = Path(__file__).resolve().parent / "results" / "gold"
NUM_PARTS = 20  # of a run's samples or draws, to resample
WARNING, DASH = "Warning: ", "–"
OF_INPUTS = ("normalise", "empcov")  # settings of networks that only change what images become


def main() -> None:
    options = read_options()
    gold = read_gold(find_gold(options.gold, GOLD_FOLDER))
    scored = {}
    for path in options.predictions:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        predictions = predictions_of(path, gold, options)
        scored[str(path)] = score_beside(predictions, gold, options.num_bootstraps, options.seed)
    report(scored, gold, options)
    if options.out:
        scores = {name: each._asdict() for name, each in scored.items()}
        save_json(options.out, {"gold": gold.name, "floor": floor(gold), "scores": scores})
        print(f"Wrote {options.out}")


def read_options() -> argparse.Namespace:
    parser = Parser(prog="score.py", description=__doc__)
    parser.add_argument(
        "predictions", type=Path, nargs="+", metavar="FILE",
        help="predictions as .npz or .npy, or run directories",
    )  # fmt: skip
    names = ", ".join(sorted(path.stem for path in GOLD_FOLDER.glob("*.npz")))
    parser.add_argument(
        "--gold", required=True, metavar="NAME", help=f"gold standard: {names}, or the path of one"
    )
    parser.add_argument("--array", metavar="NAME", help="array of an .npz that has several")
    parser.add_argument(
        "--num_draws", type=int, default=1000, metavar="INT",
        help="samples or draws that a run predicts with, at most (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--num_bootstraps", type=int, default=200, metavar="INT",
        help="resamplings behind standard errors (default: 200)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="INT", help="seed of all random numbers (default: 0)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the scores as JSON, too")
    parser.add_argument(
        "--data_dir", default="data", metavar="DIR", help="folder of the data sets (default: data)"
    )
    options = parser.parse_args()
    if options.num_draws < 1 or options.num_bootstraps < 2 or options.seed < 0:
        raise UserError(
            "--num_draws must be at least 1, --num_bootstraps at least 2, and --seed at least 0."
        )
    return options


# ---- what is scored


def predictions_of(path: Path, gold: Gold, options: argparse.Namespace) -> PartPredictions:
    if path.is_dir():
        return predictions_of_run(path, gold, options)
    probabilities = open_predictions(path, gold, options.array)
    return PartPredictions(probabilities[None], torch.ones(1, dtype=torch.long))


def predictions_of_run(path: Path, gold: Gold, options: argparse.Namespace) -> PartPredictions:
    posterior, run = open_posterior(path), PastRun(path)
    dataset = gold.about["dataset"]
    if run.dataset not in (None, dataset):
        raise UserError(f"{path} is a run on {run.dataset}, but {gold.name} is of {dataset}.")
    data = inputs_for(posterior.network, load_dataset(dataset, options.data_dir))
    warn_of_other_posterior(run, posterior.network, gold, len(data.train_labels))
    if checksum_of_labels(data.test_labels) != gold.about["labels_sha256"]:
        raise UserError(
            f"The test labels of {dataset} in {options.data_dir} are not those of {gold.name}."
        )
    random = generator(options.seed, "score")
    if is_set(posterior):
        count = min(options.num_draws, len(posterior))
        samples = posterior if count == len(posterior) else posterior.draw(count, random)
        images = data.test_images
        return predict_samples(posterior.network, samples, count, images, NUM_PARTS)
    return predict_draws(
        posterior.network, posterior, data.test_images, options.num_draws, NUM_PARTS, random
    )


def warn_of_other_posterior(run: PastRun, network: Network, gold: Gold, num_points: int) -> None:
    """Say so if a run is of another posterior than HMC's, as far as its settings are known.

    `num_points` is the number of training images in the data set.
    """
    theirs = gold.about["posterior"]
    if not same_network(network, theirs):
        print(
            f"{WARNING}{run.directory} is of another network: {network}, not {theirs['network']}."
        )
    differing = []
    normalised = network.normalisation == "published"
    if "pixels" in theirs and normalised != (theirs["pixels"] is not None):
        differing.append(f"pixels {'normalised' if normalised else 'in [0, 1]'}, unlike HMC's")
    if run.config:
        settings = run.config | {"num_train": run.data.get("num_train")}
        ours, other = facts_of(settings, num_points), facts_of(theirs, num_points)
        same_prior = ours["prior"].matches(other["prior"])
        differing += [
            f"{name} {ours[name]}, not {other[name]}"
            for name in ours
            if not (same_prior if name == "prior" else ours[name] == other[name])
        ]
        if settings.get("padding") or settings.get("flips"):
            differing.append("images were cropped or flipped at random")
    if differing:
        print(f"{WARNING}{run.directory} is of another posterior: {'; '.join(differing)}.")


def same_network(network: Network, theirs: dict) -> bool:
    """Return whether the architecture is that of the gold standard, whatever its inputs are."""
    if "architecture" not in theirs:  # a file of an earlier version
        return str(network) == theirs["network"]
    ours, other = (
        {name: value for name, value in each.items() if name not in OF_INPUTS}
        for each in (jsonable(network.describe()), theirs["architecture"])
    )
    return ours == other


def facts_of(settings: dict, num_points: int) -> dict:
    """Return by name what settings say of a posterior, in units that can be compared."""
    num_train = settings.get("num_train") or num_points - (settings.get("num_valid") or 0)
    return {
        "training images": num_train, "prior": stated_prior(settings, num_train),
        "temperature": settings.get("temperature") or 1.0,
        "share of fixed weights": settings.get("fixed_share") or 0.0,
    }  # fmt: skip


# ---- what is said


def report(scored: dict[str, Scored], gold: Gold, options: argparse.Namespace) -> None:
    metrics = [metric for metric in METRICS.values() if metric.needs == "average"]
    rows = [[name, *(cell(metric, each) for metric in metrics)] for name, each in scored.items()]
    own = score_beside(gold.predictions, gold, options.num_bootstraps, options.seed)
    absent = ("agreement", "total_variation")  # of HMC with itself
    rows.append(
        [f"HMC ({gold.name})", *(DASH if m.name in absent else cell(m, own) for m in metrics)]
    )
    Table(["", *(metric.heading for metric in metrics)], rows).print()
    print(f"\n{floor_text(gold)}")
    print("± is due to test images and samples, and has none of the bias of HMC's finite chains.")
    null = calibrated_errors(gold.predictions.average(), generator(options.seed, "calibrated"))
    print(f"ECE of predictions as sure as HMC's, if they were calibrated: {null.mean():.4f}.")
    for name, each in scored.items():
        if each.impossible:
            print(
                f"{name} gives probability 0 to the labels of {plural(each.impossible, 'image')}, "
                "so its NLL is infinite."
            )
        if looks_shuffled(each.values, gold):
            print(
                f"{WARNING}{name} agrees with HMC hardly more often than by chance. Are its rows "
                f"in the order of the test images of {gold.about['dataset']}, and its columns in "
                "that of the classes?"
            )
    missing = gold.about["checks"]["shortfalls"]
    if missing:
        print(f"{WARNING}{gold.name} is preliminary: {'; '.join(missing)}.")


def cell(metric, scored: Scored) -> str:
    factor, digits = metric.shown
    value, error = scored.values[metric.name], scored.errors[metric.name]
    return with_error(value, error, digits, factor) if math.isfinite(value) else DASH


if __name__ == "__main__":
    with ends_in_a_sentence("score", "the same command"):
        main()
