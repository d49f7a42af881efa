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
from pathlib import Path

from utils.data.datasets import load_dataset
from utils.networks.mlp import ACTIVATIONS, MLP
from utils.networks.network import Network
from utils.networks.registry import ARCHITECTURES, conv_network, inputs_for, usual_shape
from utils.posteriors.exchange import export_tars, import_networks, read_all
from utils.posteriors.files import open_posterior
from utils.posteriors.named_samples import save_named_samples
from utils.posteriors.posterior import is_set
from utils.quality.gold import floor_text, read_gold, save_gold
from utils.report.card import card
from utils.report.chain import chain_facts, gold_card, is_chain
from utils.report.published import describe_set, predict_chains, prediction_facts
from utils.runs.files import new_folder
from utils.runs.lookup import PastRun
from utils.runs.progress import progress_bar
from utils.runs.script import ends_in_a_sentence
from utils.settings.config import Parser
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch

EXPORT_DTYPES = {"float16": torch.float16, "float32": torch.float32}
LICENCE = "MIT, as the repository that they were made with."


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
    count, dtype = len(posterior), EXPORT_DTYPES[options.dtype]
    place = options.out_dir or Path("exported") / name
    with new_folder(place) as folder:
        if options.tar:
            paths = export_tars(folder, name, posterior, dtype)
            contents = ", ".join(path.name for path in paths)
        else:
            with progress_bar(count, "writing", unit="network", items=posterior) as rows:
                save_named_samples(folder, posterior.network, rows, count, dtype)
            data = load_dataset(run.dataset, options.data_dir) if run.dataset else None
            networks = describe_set(folder, name, run, dtype, options.licence, data)
            (folder / "README.md").write_text(card(networks))
            contents = "README.md is their card"
    print(f"Wrote {plural(count, 'network')} to {place}: {contents}.")


def check_name(name: str) -> None:
    if "/" in name or name.startswith("."):
        raise UserError(f"--name is part of a path: no '/' and no leading '.' in {name!r}, please.")


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
    facts = chain_facts(run, posterior.network, data)
    missing = facts["checks"]["shortfalls"]
    if missing and not options.preliminary:
        raise UserError(
            f"{options.run} is not converged well enough for others to rely on "
            f"({'; '.join(missing)}): extend it with --resume and more --num_samples or "
            "--num_chains, or mark it with --preliminary."
        )
    predictions = predict_chains(posterior, data.test_images)
    facts |= {"name": options.name, "dataset": run.dataset, "licence": options.licence}
    facts |= prediction_facts(posterior, predictions, data.test_labels)
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
    files = read_all(options.files)
    with (
        new_folder(options.out_dir) as folder,
        progress_bar(None, "reading", unit="network", items=files) as networks,
    ):
        imported = import_networks(iter(networks), folder, network, options.activation)
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


if __name__ == "__main__":
    with ends_in_a_sentence("checkpoints", "the same command"):
        main()
