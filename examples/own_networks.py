"""Your own networks: rebased, summed up in one Gaussian, predicted with, and pruned.

    python examples/own_networks.py --networks a.pt b.pt c.pt --inputs x.npy --labels y.npy
    python examples/own_networks.py --samples mine/samples.npy --out_dir compact

Networks are state_dicts of torch.nn classifiers of one architecture: linear layers with ReLU (or
Tanh: --activation tanh) between them, under any names. Samples are those of any sampler: [K, d],
with network.json beside them. All are rebased to the first: by activation if there are inputs
[N, in], or images that flatten to it, prepared as in training; and otherwise by weight.

Leaves in --out_dir, which must be new or empty:

    compact.npz       q_r, the Gaussian over rebased weights: mean, std; and the permutations
    pruned.pt         its mean network with --kept % of the weights, the others 0: a state_dict
                      with the first network's names (of samples: an nn.Sequential's)
    predictions.npy   [N, classes]: what q_r predicts on the inputs
    summary.json      NoT of each network; with labels, accuracies, and those of other prunings
    samples.npy       the networks as weight vectors, as MNIST_eval.py --samples takes them
    network.json      layer sizes and activation

A low σ means a certain weight if the networks are samples of a posterior, so of --samples those of
lowest σ are kept (--prune_by std). In --networks that were merely trained, weights that training
hardly moves have a low σ as well, and to keep them would ruin the network: of these the largest
|μ|/σ are kept (--prune_by signal_to_noise).
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

# So that `utils` is found from here, with nothing installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.data.user_arrays import read_inputs, read_labels
from utils.evaluation.metrics import accuracy
from utils.evaluation.pruning import KEPT_PERCENT, accuracy_curve, orders, prune
from utils.networks.network import Network
from utils.networks.predictions import mean_probabilities
from utils.networks.state_dicts import Layout, default_layout, read_networks
from utils.posteriors.compact import Compact
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import no_moments
from utils.posteriors.samples import open_samples
from utils.report.tables import print_table
from utils.runs.config import Parser
from utils.runs.errors import UserError
from utils.runs.files import as_numpy, save_json
from utils.runs.progress import progress_bar
from utils.runs.seeding import generator
from utils.symmetry.matching import make_matcher
from utils.symmetry.permutation import expected_transpositions
from utils.symmetry.rebasin import rebase_all

import numpy as np
import torch
from torch import Tensor

CRITERIA = ("std", "signal_to_noise", "abs_mean")  # of those in utils/pruning.py
NUM_DRAWS = 100  # weights drawn from a Gaussian for its predictions
FAR_LESS = 0.1  # of accuracy, from which on a pruned network comes with advice
SHOWN = 20  # networks whose NoT is printed; summary.json has all


def main(options: argparse.Namespace) -> None:
    layout, samples = open_networks(options)
    network = layout.network
    inputs = open_inputs(options.inputs, network) if options.inputs else None
    labels = (
        read_labels(options.labels, len(inputs), network.num_classes) if options.labels else None
    )
    q_d, compact = rebase_and_fit(network, samples, inputs)
    q_r = compact.posterior
    found = orders(q_r, generator(0, "random_order"))
    ranked = {name: several[0] for name, several in found.items()}
    prune_by = choose_order(options, q_r)
    pruned = prune(q_r.mean, ranked[prune_by], options.kept / 100)
    summary = describe(network, compact, pruned) | {"prune_by": prune_by}
    arrays = {} if options.samples else {"samples": samples}
    if inputs is not None:
        arrays["predictions"] = mean_probabilities(network, draws(q_r), inputs)
    if labels is not None:
        averaged = {"average": samples, "q_d": draws(q_d), "q_r": draws(q_r)}
        averaged |= {"mu_r": [q_r.mean], "pruned": [pruned]}
        summary["accuracy"] = score(network, samples, averaged, inputs, labels)
        summary["pruning"] = {"kept_percent": KEPT_PERCENT} | {
            name: accuracy_curve(network, q_r.mean, order, inputs, labels)
            for name, order in ranked.items()
        }
    save(options.out_dir, layout, compact, pruned, arrays, summary)
    report(options, summary)


def read_options() -> argparse.Namespace:
    parser = Parser(prog="own_networks.py", description=__doc__)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--networks", nargs="+", type=Path, metavar="PT", help="state_dicts")
    given.add_argument("--samples", type=Path, metavar="NPY", help="[K, d], beside network.json")
    parser.add_argument("--activation", help="of --networks: relu or tanh (default: relu)")
    parser.add_argument(
        "--inputs", type=Path, metavar="NPY", help="[N, in] or images, as in training"
    )
    parser.add_argument("--labels", type=Path, metavar="NPY", help="[N]: their class numbers")
    parser.add_argument(
        "--prune_by", choices=CRITERIA,
        help="(default: signal_to_noise of --networks, std of --samples)",
    )  # fmt: skip
    parser.add_argument("--kept", type=float, default=20, help="%% of weights kept (default: 20)")
    parser.add_argument("--out_dir", type=Path, default="own", help="new or empty (default: own)")
    options = parser.parse_args()
    if options.samples and options.activation:
        raise UserError("--activation is for --networks: that of samples is in network.json.")
    if options.labels and not options.inputs:
        raise UserError("--labels are those of the inputs: give --inputs, too.")
    if not 0 < options.kept <= 100:
        raise UserError(f"--kept is a percentage above 0 and up to 100, not {options.kept:g}.")
    check_place(options.out_dir)
    return options


def check_place(out_dir: Path) -> None:
    """Make the directory, which may be there if it is empty."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        empty = not any(out_dir.iterdir())
    except OSError as error:
        raise UserError(
            f"Cannot use {out_dir} as a directory: {error.strerror}. Give another --out_dir."
        ) from None
    if not empty:
        raise UserError(f"{out_dir} is not empty: give another --out_dir, or empty it.")


def open_networks(options: argparse.Namespace) -> tuple[Layout, Sequence[Tensor]]:
    """How to give a network back, and the weights [d] of each."""
    if options.samples:
        samples = open_samples(options.samples)
        layout = default_layout(samples.network)
    else:
        layout, stack = read_networks(options.networks, options.activation or "relu")
        samples = stack.float()
    if len(samples) < 2:
        raise UserError("A Gaussian needs two networks or more: give others to --networks.")
    if not layout.network.groups:
        raise UserError("These networks have no hidden layer, so there is nothing to permute.")
    return layout, samples


def open_inputs(path: Path, network: Network) -> Tensor:
    """Inputs [N, in]; that others are flattened is said, as it may not be what was meant."""
    inputs = read_inputs(path, math.prod(network.input_shape))
    if network.num_classes == 1:
        raise UserError(
            "These networks have a single output, and what is predicted here are probabilities of "
            "classes, by softmax: leave the inputs out, and the networks are rebased by weight."
        )
    shape = np.load(path, mmap_mode="r").shape
    if len(shape) > 2:
        print(f"{path}: {list(shape)} is flattened to {list(inputs.shape)}, as by nn.Flatten.")
    return inputs


def rebase_and_fit(
    network: Network, samples: Sequence[Tensor], inputs: Tensor | None
) -> tuple[Gaussian, Compact]:
    """q_d of the networks as they are, and q_r of them rebased to the first."""
    method = "weight" if inputs is None else "activation"
    matcher = make_matcher(method, network, samples[0], inputs)
    direct = rebased = no_moments(samples[0])
    transformations = []
    with progress_bar(len(samples), f"rebasing by {method}", unit="network") as bar:
        for weights, moved in zip(samples, rebase_all(network, samples, matcher), strict=True):
            direct, rebased = direct.add(weights), rebased.add(moved.weights)
            transformations.append(moved.matching.transformation)
            bar.update()
    return direct.gaussian(), Compact(rebased.gaussian(), transformations, samples[0])


def choose_order(options: argparse.Namespace, q_r: Gaussian) -> str:
    """What weights are kept by, unless it is said: σ tells nothing where all networks are alike."""
    by_std = options.samples and q_r.std.any()
    return options.prune_by or ("std" if by_std else "signal_to_noise")


def draws(posterior: Gaussian) -> Iterable[Tensor]:
    return posterior.draw(NUM_DRAWS, generator(0, "draws"))


def describe(network: Network, compact: Compact, pruned: Tensor) -> dict:
    """NoT of each network's hidden layers beside random ones', and how sparse the pruned one is."""
    return {
        "transpositions": [
            list(each.transpositions().values()) for each in compact.transformations
        ],
        "random": [expected_transpositions(group.size) for group in network.groups.values()],
        "zeros": (pruned == 0).double().mean().item(),
    }


def score(
    network: Network,
    samples: Sequence[Tensor],
    averaged: dict[str, Iterable[Tensor]],
    inputs: Tensor,
    labels: Tensor,
) -> dict:
    """Accuracy of each network, and of what several of them predict on average."""

    def accuracy_of(networks: Iterable[Tensor]) -> float:
        return accuracy(mean_probabilities(network, networks, inputs), labels)

    alone = [accuracy_of([weights]) for weights in samples]
    return {"networks": alone} | {name: accuracy_of(several) for name, several in averaged.items()}


def save(
    out_dir: Path, layout: Layout, compact: Compact, pruned: Tensor, arrays: dict, summary: dict
) -> None:
    compact.save(out_dir / "compact.npz")
    torch.save(layout.state_dict(pruned), out_dir / "pruned.pt")
    for name, array in arrays.items():
        np.save(out_dir / f"{name}.npy", as_numpy(array))
    save_json(out_dir / "network.json", dataclasses.asdict(layout.network))
    save_json(out_dir / "summary.json", summary)


def report(options: argparse.Namespace, summary: dict) -> None:
    moves, random = summary["transpositions"], [f"{mean:.1f}" for mean in summary["random"]]
    names = options.networks or [f"sample {number}" for number in range(len(moves))]
    rows = [[str(name), *map(str, move)] for name, move in zip(names, moves, strict=True)]
    headings = ["NoT", *(f"hidden layer {number + 1}" for number in range(len(random)))]
    print_table([headings, *rows[:SHOWN], ["random, on average", *random]])
    if "accuracy" in summary:
        print()
        for name, shares in summary["accuracy"].items():
            shares = shares if isinstance(shares, list) else [shares]
            print(f"accuracy of {name:9}", *(f"{100 * share:6.2f} %" for share in shares[:SHOWN]))
        print()
        print(f"{'% kept of mu_r':16}", *(f"{percent:6}" for percent in KEPT_PERCENT))
        for name in CRITERIA:
            curve = summary["pruning"][name]
            print(f"{name:16}", *(f"{100 * share:6.2f}" for share in curve))
        advise(summary["accuracy"])
    prune_by = summary["prune_by"]
    print(f"\npruned.pt: {100 * summary['zeros']:.2f} % of the weights are zero, by {prune_by}.")
    print(f"Saved in {options.out_dir}")


def advise(scores: dict) -> None:
    """What to do where pruning has cost much."""
    lost = scores["mu_r"] - scores["pruned"]
    if lost > FAR_LESS:
        print(
            f"\nThe pruned network is {100 * lost:.1f} points less accurate than mu_r: compare the "
            f"orders above (--prune_by {', '.join(CRITERIA[:-1])} or {CRITERIA[-1]}), or keep more "
            "of the weights (--kept)."
        )


if __name__ == "__main__":
    try:
        main(read_options())
    except (UserError, OSError) as error:
        print(f"own_networks: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
