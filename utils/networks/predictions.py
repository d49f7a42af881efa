"""Predictive distributions of networks and posteriors; running statistics computed again."""

from collections.abc import Iterable

from utils.networks.network import Network

import torch
from torch import Tensor


def class_probabilities(network: Network, weights: Tensor, inputs: Tensor) -> Tensor:
    """Softmax outputs [N, classes] of the network with one weight vector, in float64.

    In float32 a probability below 1e-45 would be 0, and its −log infinite.
    """
    chunks = (network.outputs(weights, rows) for rows in inputs.split(network.chunk_rows))
    return torch.cat([chunk.softmax(-1, dtype=torch.float64) for chunk in chunks])


def mean_probabilities(network: Network, samples: Iterable[Tensor], inputs: Tensor) -> Tensor:
    """Average [N, classes] over weight vectors of what each predicts, summed in float64."""
    total, count = 0, 0
    for weights in samples:
        total = total + class_probabilities(network, weights, inputs)
        count += 1
    return total / count


@torch.no_grad()
def recompute_statistics(network: Network, weights: Tensor, images: Tensor) -> Tensor:
    """Return the weights [d] with the average statistics of chunks of these images.

    Each chunk is normalised by its own statistics, as in training.
    """
    sums = {}
    for rows in images.split(network.chunk_rows):
        _, statistics = network.batch_outputs(weights[None], rows)
        for name, values in statistics.items():
            sums[name] = sums.get(name, 0) + len(rows) / len(images) * values
    updated = weights.clone()
    network.update_buffers(updated[None], sums, 1.0)
    return updated
