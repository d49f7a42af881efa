"""Two networks trained independently: losses, distances and NoT along the line between them.

After each epoch the second network W_1 is taken as it is, rebased to the first by activation, and
rebased by weight. A fourth line leads to the units of W_1 that respond most like those of W_0,
many to one; they are no permutation, so this end computes something else than W_1.
"""

from collections.abc import Sequence
from dataclasses import replace

from utils.data.datasets import Dataset
from utils.networks.network import Network
from utils.rebasin.assignment import Matching
from utils.rebasin.many_to_one import most_similar
from utils.rebasin.paths import Line, barrier, score, tensor_distances
from utils.rebasin.rebase import rebase
from utils.rebasin.response_matching import ActivationMatcher
from utils.rebasin.weight_matching import WeightMatcher

import torch
from torch import Tensor

ALIGNMENTS = ("as is", "by activation", "by weight", "many to one")  # of W_1
MANY_TO_ONE = 3
UNDECIDED_UNITS = ("dead", "reference_dead", "tied", "reference_tied")  # as in `Matching`


def measure_line(
    network: Network, data: Dataset, pair: Tensor, fractions: Sequence[float], by_activation: bool
) -> dict[str, Tensor]:
    """Return what training_dynamics.npz holds of one checkpoint.

    train_loss, train_error, test_loss, test_error [alignment, λ]
    distance [alignment, λ, tensor]: ‖W_λ − W_0‖ per tensor and in total
    transpositions [alignment, λ, layer]: NoT of W_λ against W_0, for W_1 as is and rebased
    alignment_transpositions [method, layer]: NoT of the rebasin by activation and by weight
    lost [layer]: units of W_1 that matching many to one leaves out
    undecided [4]: hidden units of W_1 and of W_0 that no image activates, and those of W_1 and of
        W_0 that respond just as another one of the same network
    """
    first, second = pair
    matchers = [ActivationMatcher(network, first, data.train_images), WeightMatcher(network, first)]
    rebased = [rebase(network, second, matcher) for matcher in matchers]
    found = [moved.matching for moved in rebased]
    selection = most_similar(matchers[0], second)
    ends = torch.stack([second, *(moved.weights for moved in rebased), selection.apply(second)])
    line = Line(network, first, ends, fractions)
    distances = torch.stack([tensor_distances(network, first, end) for end in ends])
    chosen = 0 if by_activation else 1
    along, matcher = replace(line, second=ends[[0, 1 + chosen]]), matchers[chosen]
    if isinstance(matcher, ActivationMatcher):  # all at once, for they share most of the work
        matched = matcher.match_all(along)
    else:
        matched = [matcher(weights) for weights in along.weights]
    return {
        **score_line("train", line, data),
        **score_line("test", line, data),
        # W_λ − W_0 = λ (W_1 − W_0)
        "distance": torch.tensor(fractions).to(distances)[:, None] * distances[:, None],
        "transpositions": count_transpositions(matched).unflatten(0, (2, -1)),
        "alignment_transpositions": count_transpositions(found),
        "lost": torch.tensor(list(selection.lost().values())),
        "undecided": torch.tensor([getattr(found[0], name) for name in UNDECIDED_UNITS]),
    }


def score_line(part: str, line: Line, data: Dataset) -> dict[str, Tensor]:
    """Return loss and error [alignment, λ]."""
    scores = score(line, *data.part(part), data.train_images)
    shape = (len(line.second), len(line.fractions))
    return {f"{part}_loss": scores.loss.view(shape), f"{part}_error": scores.error.view(shape)}


def count_transpositions(matchings: list[Matching]) -> Tensor:
    """Return NoT [matching, layer]."""
    return torch.tensor(
        [list(matching.transformation.transpositions().values()) for matching in matchings]
    )


def what_is_lost(results: dict[str, Tensor]) -> str:
    """Say what matching many to one does to W_1 itself."""
    (loss, new_loss), (error, new_error) = (
        results[f"test_{kind}"][-1, [0, MANY_TO_ONE], -1].tolist() for kind in ("loss", "error")
    )
    lost = " + ".join(map(str, results["lost"][-1].tolist()))
    return (
        f"Many to one, W_1 loses {lost} units: its test loss goes from {loss:.4f} to "
        f"{new_loss:.4f} nats, its error from {100 * error:.2f} to {100 * new_error:.2f} %"
    )


def summary_of_line(results: dict[str, Tensor], alignment: int, fractions: Sequence[float]) -> dict:
    """Return an alignment's largest barriers over λ and its NoT, after training and over epochs."""
    heights = {
        f"{name}_barrier": barrier(results[name][:, alignment], fractions).amax(-1)
        for name in ("train_loss", "test_loss", "test_error")
    }
    test_height = heights["test_loss_barrier"]
    trained = {name: height[-1].item() for name, height in heights.items()}
    over_epochs = {
        "largest_test_loss_barrier": test_height.max().item(),
        "epoch_of_largest": test_height.argmax().item(),
    }
    if alignment == MANY_TO_ONE:  # no permutation
        ends = {f"end_test_{kind}": results[f"test_{kind}"][-1, alignment, -1].item()
                for kind in ("loss", "error")}  # fmt: skip
        lost = results["lost"][-1].tolist()
        return {**trained, **ends, "lost": lost, "over_epochs": over_epochs}
    found = results["alignment_transpositions"]  # [epoch, method, layer]; as it is, none is moved
    layers = found[:, alignment - 1] if alignment else torch.zeros_like(found[:, 0])
    total = layers.sum(-1)
    return {
        **trained,
        "transpositions": total[-1].item(),
        "transpositions_per_layer": layers[-1].tolist(),
        "over_epochs": {
            "least_transpositions": total.min().item(),
            "most_transpositions": total.max().item(),
            **over_epochs,
        },
    }
