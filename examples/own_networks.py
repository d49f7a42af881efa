"""Rebase your own networks, and summarise them in one Gaussian.

    python examples/own_networks.py --networks a.pt b.pt c.pt --inputs x.npy --labels y.npy
    python examples/own_networks.py --samples mine/samples.npy --out_dir compact

--networks are state_dicts of torch.nn classifiers of one architecture: linear layers with one
activation between them (--activation), under any names. --samples are those of any sampler, [K, d]
with network.json beside them. All networks are rebased to the first: by activation on --inputs, or
by weight without them. Prepare the inputs as in training. --test_inputs and --test_labels score the
result on other data than it was matched on.

Files in --out_dir, which must be new or empty:

    rebased/NAME.pt   each of --networks, rebased: a state_dict with its own parameter names
    mean.pt           the mean of the rebased networks, with the first network's parameter names
    compact.npz       q_r, a Gaussian over rebased weights: mean and std; and the permutations
    predictions.npy   [N, classes]: what q_r predicts on the test inputs (or else the inputs)
    summary.json      NoT, accuracies and loss barriers of every network, as printed
    samples.npy       --networks as weight vectors, for MNIST_eval.py --samples
    network.json      layer sizes and activation
    pruned.pt         with --kept: mean.pt with --kept % of its weights, and the others 0

Pruning costs accuracy, so it is done only on request. Of three criteria (--prune_by), the default
is the one with the best accuracy on --inputs; without labels it is |μ| for networks, and σ for
samples. A low σ means a certain weight only if the networks are samples of a posterior.
"""

import argparse
import dataclasses
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

# So that `utils` is found from here, with nothing installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.data.user_arrays import read_inputs, read_labels
from utils.evaluation.metrics import accuracy
from utils.evaluation.pruning import ORDER_BY, accuracy_curve, prune, without
from utils.networks.mlp import ACTIVATIONS, MLP
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.networks.state_dicts import (
    Layout,
    default_layout,
    read_layout,
    read_networks,
    read_state_dict,
)
from utils.posteriors.compact import Compact
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import no_moments
from utils.posteriors.samples import open_samples
from utils.rebasin.matching import make_matcher
from utils.rebasin.paths import Line, barrier, score
from utils.rebasin.rebase import rebase_all
from utils.report.tables import Table
from utils.runs.files import as_numpy, save_json
from utils.runs.progress import progress_bar
from utils.runs.script import ends_in_a_sentence
from utils.runs.seeding import generator
from utils.settings.config import Parser
from utils.settings.errors import UserError
from utils.settings.wording import plural
from utils.symmetry.permutation import expected_transpositions

import numpy as np
import torch
from torch import Tensor

CRITERIA = {"abs_mean": "largest |μ|", "signal_to_noise": "largest |μ|/σ", "std": "smallest σ"}
KEPT_PERCENT = (100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1)  # of the printed accuracies
NUM_DRAWS = 100  # weights drawn from a Gaussian for its predictions
SHOWN = 20  # networks in the printed table, and samples whose barriers are computed
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way between two networks, for loss barriers
TITLES = {
    "average": "average of all networks' predictions",
    "q_d": "q_d: Gaussian over the networks as they are",
    "q_r": "q_r: Gaussian over the rebased networks",
    "mu_r": "mean.pt: mean of the rebased networks",
    "pruned": "pruned.pt",
}


class Data(NamedTuple):
    path: Path | None = None
    inputs: Tensor | None = None  # [N, …]
    labels: Tensor | None = None  # [N]


def main(options: argparse.Namespace) -> None:
    layout, samples = open_networks(options)
    network = layout.network
    matched = open_data(options.inputs, options.labels, network)
    scored = open_data(options.test_inputs, options.test_labels, network)
    scored = matched if scored.inputs is None else scored
    print_reading(options, layout, len(samples), matched, scored)
    labelled = matched if scored.labels is None else scored
    check_activation(options, network, samples[0], labelled)
    q_d, compact = rebase_and_fit(network, samples, matched.inputs)
    q_r = compact.posterior
    summary = transpositions_of(compact)
    state_dicts = {"mean": layout.state_dict(q_r.mean)}
    averaged = {"average": samples, "q_d": draws(q_d), "q_r": draws(q_r), "mu_r": [q_r.mean]}
    if options.kept is not None:
        pruned, about = prune_mean(options, layout, q_r, matched, scored)
        summary |= about
        averaged["pruned"] = [pruned]
        state_dicts["pruned"] = layout.state_dict(pruned)
    arrays = {"samples": samples} if options.networks else {}
    if scored.inputs is not None:
        arrays["predictions"] = mean_probabilities(network, draws(q_r), scored.inputs)
    if scored.labels is not None:
        count = len(samples) if options.networks else min(SHOWN, len(samples))
        test = (scored.inputs, scored.labels)
        summary["accuracy"] = accuracies_of(network, samples, averaged, *test)
        summary["barriers"] = barriers_to_first(compact, samples, count, *test)
    save(options, network, compact, state_dicts, arrays, summary)
    report(options, summary)


def read_options() -> argparse.Namespace:
    parser = Parser(prog="own_networks.py", description=__doc__)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--networks", nargs="+", type=Path, metavar="PT", help="state_dicts")
    given.add_argument("--samples", type=Path, metavar="NPY", help="[K, d], beside network.json")
    parser.add_argument(
        "--activation",
        help=f"activation of --networks: {', '.join(ACTIVATIONS)} (default: relu)",
    )
    for name, use in (("", "match units"), ("test_", "score (default: --inputs and --labels)")):
        parser.add_argument(
            f"--{name}inputs", type=Path, metavar="NPY",
            help=f"[N, in] or images, prepared as in training, on which to {use}",
        )  # fmt: skip
        parser.add_argument(
            f"--{name}labels", type=Path, metavar="NPY", help=f"[N]: classes of --{name}inputs"
        )
    parser.add_argument("--kept", type=float, metavar="PERCENT", help="prune to this %% of weights")
    parser.add_argument(
        "--prune_by", choices=CRITERIA, help="which weights --kept keeps (default: the best)"
    )
    parser.add_argument("--out_dir", type=Path, default="own", help="new or empty (default: own)")
    options = parser.parse_args()
    if options.samples and options.activation:
        raise UserError("--activation is for --networks: that of samples is in network.json.")
    for name in ("", "test_"):
        if getattr(options, f"{name}labels") and not getattr(options, f"{name}inputs"):
            raise UserError(f"--{name}labels are classes of inputs: give --{name}inputs, too.")
    if options.prune_by and options.kept is None:
        raise UserError("--prune_by says which weights to keep: give --kept, too.")
    if options.kept is not None and not 0 < options.kept <= 100:
        raise UserError(f"--kept is a percentage above 0 and up to 100, not {options.kept:g}.")
    check_place(options.out_dir)
    return options


def check_place(out_dir: Path) -> None:
    """Make the directory, or refuse one that is not empty."""
    out_dir.mkdir(parents=True, exist_ok=True)
    if any(out_dir.iterdir()):
        raise UserError(f"{out_dir} is not empty: give another --out_dir, or empty it.")


def open_networks(options: argparse.Namespace) -> tuple[Layout, Sequence[Tensor]]:
    """Return the layout of the state_dicts to write, and the weights [d] of each network."""
    if options.samples:
        if not options.samples.exists():
            raise UserError(f"Cannot read {options.samples}: there is no such file.")
        samples = open_samples(options.samples)
        layout = default_layout(samples.network)
    else:
        layout, samples = read_networks(options.networks, options.activation or "relu")
        samples = samples.float()
    if len(samples) < 2:
        raise UserError("A Gaussian needs two networks or more: give others to --networks.")
    if not layout.network.groups:
        raise UserError("These networks have no hidden layer, so there is nothing to permute.")
    return layout, samples


def open_data(inputs_path: Path | None, labels_path: Path | None, network: Network) -> Data:
    """Read inputs and labels, and say so if inputs are flattened: it may not be intended."""
    if inputs_path is None:
        return Data()
    inputs = read_inputs(inputs_path, math.prod(network.input_shape))
    if network.num_classes == 1:
        raise UserError(
            "These networks have a single output, but probabilities of classes are predicted here, "
            "by softmax: leave the inputs out, and the networks are rebased by weight."
        )
    shape = np.load(inputs_path, mmap_mode="r").shape
    if len(shape) > 2 and len(network.input_shape) == 1:
        print(f"{inputs_path}: {list(shape)} is flattened to {list(inputs.shape)}.")
    inputs = inputs.unflatten(1, network.input_shape)
    labels = read_labels(labels_path, len(inputs), network.num_classes) if labels_path else None
    return Data(inputs_path, inputs, labels)


# ---- how the networks are read


def print_reading(
    options: argparse.Namespace, layout: Layout, count: int, matched: Data, scored: Data
) -> None:
    """Print how the files are interpreted, because a state_dict does not say what it computes."""
    network = layout.network
    networks = plural(count, "network")
    reading = f"{networks}, read as {network}"
    if isinstance(network, MLP):
        sizes = "-".join(map(str, network.sizes))
        reading = f"{networks}, read as {sizes}, {network.activation} after each hidden layer"
    if layout.no_bias.any():
        reading += "; layers without biases get zeros"
    print(f"{reading}.")
    if options.networks and scored.labels is not None:
        print("The networks' accuracies below must be the ones you know.")
    elif options.networks and not options.activation:
        others = ", ".join(name for name in ACTIVATIONS if name != "relu")
        print(
            f"A state_dict does not tell the activation: if it is not relu, give --activation "
            f"({others}). With inputs and labels, accuracies will show whether it is right."
        )
    if matched.inputs is not None and scored.path == matched.path:
        print(
            f"Matched and scored on the same inputs, {matched.path}: give --test_inputs and "
            "--test_labels to score on others."
        )
    elif scored.inputs is not None:
        how = f"on {matched.path}" if matched.path else "by weight"
        print(f"Matched {how}, scored on {scored.path}.")


def check_activation(
    options: argparse.Namespace, network: Network, weights: Tensor, data: Data
) -> None:
    """Refuse to assume ReLU where another activation makes the first network clearly better.

    Two activations are compared by the inputs that only one of them gets right (McNemar's test).
    """
    if not options.networks or options.activation or data.labels is None:
        return

    def is_right(activation: str) -> Tensor:
        other = dataclasses.replace(network, activation=activation)
        return class_probabilities(other, weights, data.inputs).argmax(-1) == data.labels

    assumed = is_right("relu")
    for name in ACTIVATIONS:
        right = is_right(name)
        gained, lost = int((right & ~assumed).sum()), int((assumed & ~right).sum())
        if gained - lost > 3 * math.sqrt(gained + lost):
            raise UserError(
                f"{options.networks[0]} has an accuracy of {percent(right.double().mean())} % with "
                f"{name}, but {percent(assumed.double().mean())} % with relu, which is assumed: "
                f"give --activation {name}, or --activation relu if relu is right."
            )


# ---- rebase and score


def rebase_and_fit(
    network: Network, samples: Sequence[Tensor], inputs: Tensor | None
) -> tuple[Gaussian, Compact]:
    """Return q_d of the networks as they are, and q_r of them rebased to the first.

    They are matched by activation on the inputs, or without any by weight.
    """
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


def transpositions_of(compact: Compact) -> dict[str, list]:
    """Return NoT of each network's groups of units, and what random permutations have."""
    network = compact.transformations[0].network
    return {
        "transpositions": [
            list(each.transpositions().values()) for each in compact.transformations
        ],
        "random": [expected_transpositions(group.size) for group in network.groups.values()],
    }


def accuracies_of(
    network: Network, samples: Sequence[Tensor], averaged: dict[str, Iterable[Tensor]],
    inputs: Tensor, labels: Tensor,
) -> dict:  # fmt: skip
    """Return the accuracy of each network, and of the average prediction of several."""

    def accuracy_of(networks: Iterable[Tensor]) -> float:
        return accuracy(mean_probabilities(network, networks, inputs), labels)

    single = [accuracy_of([weights]) for weights in samples]
    return {"networks": single} | {name: accuracy_of(each) for name, each in averaged.items()}


def barriers_to_first(
    compact: Compact, samples: Sequence[Tensor], count: int, inputs: Tensor, labels: Tensor
) -> dict[str, list[float]]:
    """Return the loss barrier [nats] between each of `count` networks and the first.

    It is the largest rise at FRACTIONS of the straight line, before and after rebasin.
    """

    def barrier_to_first(weights: Tensor) -> float:
        line = Line(compact.transformations[0].network, samples[0], weights, FRACTIONS)
        return barrier(score(line, inputs, labels).loss, FRACTIONS).max().item()

    barriers: dict[str, list[float]] = {"before": [], "after": []}
    with progress_bar(count, "loss barriers", unit="network") as bar:
        for number in range(count):
            moved = compact.transformations[number].apply(samples[number])
            barriers["before"].append(barrier_to_first(samples[number]))
            barriers["after"].append(barrier_to_first(moved))
            bar.update()
    return barriers


# ---- prune


def rank_weights(q_r: Gaussian, layout: Layout) -> dict[str, Tensor]:
    """Return the order in which each criterion keeps weights, without biases that do not exist."""
    return {name: without(ORDER_BY[name](q_r), layout.no_bias) for name in CRITERIA}


def prune_mean(
    options: argparse.Namespace, layout: Layout, q_r: Gaussian, matched: Data, scored: Data
) -> tuple[Tensor, dict]:
    """Return the mean of q_r pruned, and how: its criterion, its zeros and accuracies of others."""
    network, ranked = layout.network, rank_weights(q_r, layout)
    prune_by = options.prune_by or choose_criterion(options, network, q_r, ranked, matched)
    pruned = prune(q_r.mean, ranked[prune_by], options.kept / 100)
    zeros = (pruned[ranked[prune_by]] == 0).double().mean().item()
    about = {"prune_by": prune_by, "zeros": zeros}
    if scored.labels is not None:
        about["pruning"] = {"kept_percent": KEPT_PERCENT} | {
            name: accuracy_curve(
                network, q_r.mean, order, scored.inputs, scored.labels, KEPT_PERCENT
            )
            for name, order in ranked.items()
        }
    return pruned, about


def choose_criterion(
    options: argparse.Namespace,
    network: Network,
    q_r: Gaussian,
    ranked: dict[str, Tensor],
    data: Data,
) -> str:
    """Return the criterion that prunes best on these inputs, or a usual one without labels."""
    if data.labels is None:
        return "std" if options.samples and q_r.std.any() else "abs_mean"

    def pruned_accuracy(name: str) -> float:
        pruned = prune(q_r.mean, ranked[name], options.kept / 100)
        return accuracy(class_probabilities(network, pruned, data.inputs), data.labels)

    return max(CRITERIA, key=pruned_accuracy)


def draws(posterior: Gaussian) -> Iterable[Tensor]:
    return posterior.draw(NUM_DRAWS, generator(0, "draws"))


# ---- files and tables


def save(
    options: argparse.Namespace,
    network: Network,
    compact: Compact,
    state_dicts: dict[str, dict],
    arrays: dict[str, Tensor],
    summary: dict,
) -> None:
    out_dir = options.out_dir
    compact.save(out_dir / "compact.npz")
    if options.networks:
        save_rebased(options.networks, network, compact, out_dir / "rebased")
    for name, state_dict in state_dicts.items():
        torch.save(state_dict, out_dir / f"{name}.pt")
    for name, array in arrays.items():
        np.save(out_dir / f"{name}.npy", as_numpy(array))
    network.save(out_dir / "network.json")
    save_json(out_dir / "summary.json", summary)


def save_rebased(paths: list[Path], network: Network, compact: Compact, out_dir: Path) -> None:
    """Write every network rebased, in its own precision and under its own parameter names.

    Files are named as the user's are, with a number in front if these names are not unique.
    """
    out_dir.mkdir()
    unique = len({path.stem for path in paths}) == len(paths)
    for number, path in enumerate(paths):
        state_dict = read_state_dict(path)
        layout = read_layout(state_dict, network=network)
        moved = compact.transformations[number].apply(layout.flatten(state_dict))
        name = f"{path.stem}.pt" if unique else f"{number + 1}-{path.stem}.pt"
        torch.save(layout.state_dict(moved), out_dir / name)


def report(options: argparse.Namespace, summary: dict) -> None:
    print_networks(options, summary)
    scores = summary.get("accuracy")
    if scores:
        rows = [[title, percent(scores[name])] for name, title in TITLES.items() if name in scores]
        Table(["", "accuracy [%]"], rows).print()
    if "pruning" in summary:
        curves = [
            [f"mean.pt by {criterion}", *map(percent, summary["pruning"][name])]
            for name, criterion in CRITERIA.items()
        ]
        Table(["% of weights kept", *map(str, KEPT_PERCENT)], curves).print()
    if options.kept is not None:
        chosen = CRITERIA[summary["prune_by"]]
        print(f"\npruned.pt: {percent(summary['zeros'])} % of the weights are zero; ", end="")
        print(f"those with the {chosen} are kept (--prune_by {summary['prune_by']}).")
        if options.labels and not options.prune_by:
            print(
                f"Of {len(CRITERIA)} criteria, this one is the most accurate on {options.inputs}."
            )
        if scores:
            lost = 100 * (scores["mu_r"] - scores["pruned"])
            print(f"Pruning costs {lost:.2f} points of mean.pt's accuracy.")
    print(f"\nSaved in {options.out_dir}")


def print_networks(options: argparse.Namespace, summary: dict) -> None:
    """Print NoT of every hidden layer, accuracy and loss barriers: a row for each network."""
    counts = summary["transpositions"]
    names = options.networks or [f"sample {number}" for number in range(len(counts))]
    head = ["network", *(f"NoT, hidden layer {layer + 1}" for layer in range(len(counts[0])))]
    rows = [[str(name), *map(str, row)] for name, row in zip(names, counts, strict=True)][:SHOWN]
    mean = ["mean", *(f"{np.mean(layer[1:]):.1f}" for layer in zip(*counts, strict=True))]
    random = ["random permutations", *(f"{each:.1f}" for each in summary["random"])]
    notes = ["NoT: number of transpositions that match a network to the first"]
    if "accuracy" in summary:
        shares, barriers = summary["accuracy"]["networks"], summary["barriers"]
        head += ["accuracy [%]", *(f"barrier {when} [nats]" for when in barriers)]
        mean += [percent(np.mean(shares)), *(f"{np.mean(b[1:]):.3f}" for b in barriers.values())]
        for row, share, *rises in zip(rows, shares, *barriers.values(), strict=False):
            row += [percent(share), *(f"{rise:.3f}" for rise in rises)]
        if (studied := len(barriers["before"])) < len(names):
            notes.append(f"Barriers: of the first {studied} samples only")
        notes.append("Barrier: largest rise of the loss on the straight line to the first")
    if len(names) > SHOWN:
        rows.append([f"… {len(names) - SHOWN} more"])
    lines = [row + [""] * (len(head) - len(row)) for row in (*rows, mean, random)]
    Table(head, lines).print()
    notes.append("Their means leave out the first network, which is matched to itself")
    print(*(f"{note}." for note in notes), sep="\n")


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


if __name__ == "__main__":
    with ends_in_a_sentence("own_networks", shlex.join(["python", *sys.argv])):
        main(read_options())
