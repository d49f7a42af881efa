"""Exchange sets of networks with other programs, as safetensors; publish HMC's predictions.

    python checkpoints.py export RUN                    a set of networks, with a card
    python checkpoints.py export RUN --tar              a file per network, in tars of 1,024
    python checkpoints.py import FILES --out_dir DIR    a posterior that every script takes
    python checkpoints.py gold RUN --name NAME          HMC's predictions, for score.py

`export` takes what `train.py --method sgd`, an ensemble or a sampler has left. It writes into
--out_dir networks.safetensors with tensors [networks, …] under the names of a state_dict, and
README.md, the card: architecture, recipe, accuracies of the networks as they are in the file
(networks.csv has each), and how to load them. Scripts take the folder like any posterior.

`import` takes safetensors files, tars of these such as the published sets of Laurent et al. (2024),
.pt files of state_dicts, and folders. Files are read one after the other. float16 stays float16 on
disk and becomes float32 when it is read.

`gold` takes a run of HMC and writes NAME.npz into --out_dir, results/gold by default: what each
chain predicts on the test images, in float16; and NAME.md, the card with posterior, sampler and
checks. Chains that do not meet the criteria of a reference are refused, or marked with
--preliminary.
"""

import argparse
import csv
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from utils.data.datasets import load_dataset
from utils.evaluation.metrics import accuracy, mean_nll, scores
from utils.evaluation.predictions import predict_samples
from utils.networks.mlp import ACTIVATIONS, MLP
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.networks.registry import ARCHITECTURES, conv_network, inputs_for, usual_shape
from utils.posteriors.exchange import export_tars, import_networks, read_all
from utils.posteriors.files import open_posterior
from utils.posteriors.named_samples import save_named_samples
from utils.posteriors.posterior import Mixture, is_set
from utils.quality.gold import floor_text, read_gold, save_gold
from utils.report.card import NetworkSet, card, preparation
from utils.report.chain import chain_facts, chain_sections, gold_card, is_chain
from utils.runs.files import read_mapping
from utils.runs.lookup import PastRun
from utils.runs.progress import progress_bar
from utils.runs.script import ends_in_a_sentence
from utils.settings.config import Parser
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch
from torch import Tensor

EXPORT_DTYPES = {"float16": torch.float16, "float32": torch.float32}
LICENCE = "MIT, as the repository that they were made with."
ONE_CHAIN_PARTS = 10  # that a single chain's predictions are kept in
OWN_SCORES = ("sample_accuracy", "nll", "ece", "brier")  # of HMC's predictions, for the card


def main() -> None:
    options = read_options()
    {"export": export, "import": import_all, "gold": publish_gold}[options.command](options)


def read_options() -> argparse.Namespace:
    parser = Parser(prog="checkpoints.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="export|import|gold")
    to_export = commands.add_parser("export", help="write a set of networks as safetensors")
    to_import = commands.add_parser("import", help="read networks from safetensors, tars, .pt")
    to_gold = commands.add_parser("gold", help="write HMC's predictions as a gold standard")
    _add_export(to_export)
    _add_import(to_import)
    _add_gold(to_gold)
    for each in (to_export, to_gold):
        each.add_argument("--licence", default=LICENCE, help=f"(default: {LICENCE!r})")
        each.add_argument("--data_dir", default="data", metavar="DIR",
                          help="folder of the data sets (default: data)")  # fmt: skip
    return parser.parse_args()


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, or its samples.npy")
    parser.add_argument(
        "--out_dir", type=Path, metavar="DIR", help="new folder (default: exported/NAME)"
    )
    parser.add_argument("--name", help="name of the set (default: <network>-<dataset>)")
    parser.add_argument(
        "--dtype", choices=tuple(EXPORT_DTYPES), default="float16", help="(default: float16)"
    )
    parser.add_argument(
        "--tar", action="store_true", help="a file for each network, in tars NAME-0-1023.tgz, …"
    )


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILES",
        help="safetensors files, tars of them, .pt files, or folders",
    )  # fmt: skip
    parser.add_argument("--out_dir", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--network", choices=ARCHITECTURES,
        help="architecture (default: as the files say, else an mlp of the sizes in them)",
    )  # fmt: skip
    parser.add_argument("--width", type=int, help="channels of the first convolution")
    parser.add_argument(
        "--input_shape", nargs=3, type=int, metavar="SIZE",
        help="channels, height and width of the images (default: as in symmetries.py)",
    )  # fmt: skip
    parser.add_argument("--num_classes", type=int, default=10, help="(default: 10)")
    parser.add_argument(
        "--normalise", action="store_true",
        help="the networks take images shifted and scaled by the published mean and deviation",
    )  # fmt: skip
    parser.add_argument(
        "--activation", choices=tuple(ACTIVATIONS), default="relu", help="of an mlp (default: relu)"
    )


def _add_gold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory of HMC")
    parser.add_argument("--name", required=True, help="name of the gold standard")
    parser.add_argument(
        "--out_dir", type=Path, default=Path("results/gold"), metavar="DIR",
        help="folder for NAME.npz and NAME.md (default: results/gold)",
    )  # fmt: skip
    parser.add_argument(
        "--preliminary", action="store_true", help="also of chains that have not converged"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a gold standard of this name"
    )


# ---- export


def export(options: argparse.Namespace) -> None:
    if not options.run.exists():
        raise UserError(f"{options.run} does not exist: give a run that has left networks.")
    posterior, run = open_posterior(options.run), PastRun(options.run)
    if not is_set(posterior):
        raise UserError(
            f"{options.run} has no set of networks, but a distribution of weights: give a run that "
            "leaves networks, such as one of train.py --method sgd."
        )
    name = options.name or "-".join(filter(None, [posterior.network.name, run.dataset]))
    check_name(name)
    dtype = EXPORT_DTYPES[options.dtype]
    place = options.out_dir or Path("exported") / name
    with new_folder(place) as folder:
        if options.tar:
            paths = export_tars(folder, name, posterior, dtype)
            contents = ", ".join(path.name for path in paths)
        else:
            with progress_bar(len(posterior), "writing", unit="network") as bar:
                save_named_samples(
                    folder, posterior.network, counted(posterior, bar), len(posterior), dtype
                )
            (folder / "README.md").write_text(card(describe(folder, name, run, options)))
            contents = "README.md is their card"
    print(f"Wrote {plural(len(posterior), 'network')} to {place}: {contents}.")


def check_name(name: str) -> None:
    if "/" in name or name.startswith("."):
        raise UserError(f"--name is part of a path: no '/' and no leading '.' in {name!r}, please.")


def counted(rows, bar) -> Iterator[Tensor]:
    for row in rows:
        yield row
        bar.update()


def describe(folder: Path, name: str, run: PastRun, options: argparse.Namespace) -> NetworkSet:
    """Return what the card says of the networks in a folder, after scoring them."""
    posterior = open_posterior(folder)
    numbers = numbers_of(open_posterior(options.run))
    summary = read_mapping(run.directory / "summary.json")
    networks = NetworkSet(
        name, posterior.network, len(posterior), EXPORT_DTYPES[options.dtype], options.licence,
        run.config, run.meta, run.dataset, summary.get("failed"),
    )  # fmt: skip
    if run.dataset is None:
        return networks
    data = load_dataset(run.dataset, options.data_dir)
    inputs = inputs_for(posterior.network, data)
    hits, nlls, average = score(posterior, inputs)
    write_scores(folder / "networks.csv", numbers, hits, nlls)
    normalisation = data.normalisation(posterior.network.normalisation)
    if is_chain(run):
        facts = chain_facts(run, posterior.network, data.test_labels)
        networks = networks._replace(sampling=chain_sections(facts))
    return networks._replace(
        inputs=preparation(posterior.network, run.dataset, normalisation),
        accuracies=hits, nlls=nlls, average=average,
    )  # fmt: skip


def score(posterior, data) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """Return accuracy [K] and NLL [K] of every network, and both of their average prediction."""
    network, labels = posterior.network, data.test_labels
    rows, total = [], 0
    with progress_bar(len(posterior), "scoring", unit="network") as bar:
        for weights in counted(posterior, bar):
            probabilities = class_probabilities(network, weights, data.test_images)
            total = total + probabilities
            rows.append((accuracy(probabilities, labels), mean_nll(probabilities, labels)))
    hits, nlls = torch.tensor(rows, dtype=torch.float64).unbind(1)
    average = total / len(posterior)
    return hits, nlls, (accuracy(average, labels), mean_nll(average, labels))


def numbers_of(posterior) -> Sequence[int]:
    """Return the numbers that networks had in training, or their positions if they had none."""
    parts = posterior.components if isinstance(posterior, Mixture) else [posterior]
    known = [part.known("modes") for part in parts]
    if any(numbers is None for numbers in known):
        return range(len(posterior))
    return [int(number) for numbers in known for number in numbers]


def write_scores(path: Path, numbers: Sequence[int], hits: Tensor, nlls: Tensor) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["network", "number", "test_accuracy", "test_nll"])
        for network, row in enumerate(zip(numbers, hits.tolist(), nlls.tolist(), strict=True)):
            number, share, nll = row
            writer.writerow([network, number, f"{share:.6g}", f"{nll:.6g}"])


# ---- gold


def publish_gold(options: argparse.Namespace) -> None:
    """Write what every chain of a run predicts, with its card."""
    check_name(options.name)
    path = options.out_dir / f"{options.name}.npz"
    if path.exists() and not options.overwrite:
        raise UserError(
            f"{path} exists already: give another --name, or --overwrite to replace it."
        )
    if not options.run.exists():
        raise UserError(f"{options.run} does not exist: give a run of MNIST_HMC.py.")
    posterior, run = open_posterior(options.run), PastRun(options.run)
    if not is_chain(run):
        raise UserError(f"{options.run} is no run of HMC, whose chains could be checked.")
    data = inputs_for(posterior.network, load_dataset(run.dataset, options.data_dir))
    facts = chain_facts(run, posterior.network, data.test_labels)
    missing = facts["checks"]["shortfalls"]
    if missing and not options.preliminary:
        raise UserError(
            f"{options.run} is not converged well enough for others to rely on "
            f"({'; '.join(missing)}): extend it with --resume and more --num_samples or "
            "--num_chains, or mark it with --preliminary."
        )
    chains = posterior.num_chains
    with progress_bar(len(posterior), "predicting", unit="sample") as bar:
        predictions = predict_samples(
            posterior.network, counted(posterior, bar), len(posterior), data.test_images,
            chains if chains > 1 else ONE_CHAIN_PARTS,
        )  # fmt: skip
    own = scores(predictions.compared(predictions, data.test_labels))
    part = "chain" if chains > 1 else "tenth of the chain"
    num_parts, num_test, num_classes = predictions.parts.shape
    facts |= {
        "name": options.name, "dataset": run.dataset, "licence": options.licence, "part": part,
        "num_parts": num_parts, "num_test": num_test, "num_classes": num_classes,
        "scores": {name: own[name] for name in OWN_SCORES},
    }  # fmt: skip
    options.out_dir.mkdir(parents=True, exist_ok=True)
    save_gold(path, predictions, data.test_labels, facts)
    gold = read_gold(path)
    command = f"python score.py mine.npz --gold {options.name}"
    path.with_suffix(".md").write_text(gold_card(gold.about, floor_text(gold), path, command))
    print(f"Wrote {path} with {path.with_suffix('.md').name}, its card.")


# ---- import


def import_all(options: argparse.Namespace) -> None:
    missing = [path for path in options.files if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]} does not exist.")
    network = network_asked_for(options)
    with (
        new_folder(options.out_dir) as folder,
        progress_bar(None, "reading", unit="network") as bar,
    ):
        networks = counted(read_all(options.files), bar)
        imported = import_networks(networks, folder, network, options.activation)
    precision = str(imported.dtype).removeprefix("torch.")
    print(
        f"Imported {plural(imported.count, 'network')}, {imported.network}, in {precision} into "
        f"{options.out_dir}"
    )


def network_asked_for(options: argparse.Namespace) -> Network | None:
    if options.network in (None, MLP.name):
        if options.width is not None or options.input_shape or options.normalise:
            raise UserError(
                "--width, --input_shape and --normalise belong to convolutional networks: give "
                "their --network as well."
            )
        return None
    shape = options.input_shape or usual_shape(options.network)
    return conv_network(
        options.network, tuple(shape), options.num_classes, options.width, options.normalise
    )


# ---- folders


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield a folder that appears at `place` when all is written, or not at all."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} exists already: remove it, or give another --out_dir.")
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


if __name__ == "__main__":
    with ends_in_a_sentence("checkpoints", "the same command"):
        main()
