"""Predictive distributions of networks, and of posteriors as averages over their samples."""

from collections.abc import Iterable

import torch
from torch import Tensor

from utils.mlp import Network, logits

# Rows that pass through a network at a time: their activations stay in the processor's cache.
CHUNK_ROWS = 2000


def class_probabilities(
    network: Network, weights: Tensor, inputs: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Softmax outputs [N, classes] of the network with one weight vector.

    In fp32 what is less probable than e⁻¹⁰⁰ becomes 0; with `dtype` float64 the softmax keeps it.
    """
    chunks = (logits(network, weights, rows) for rows in inputs.split(CHUNK_ROWS))
    return torch.cat([chunk.softmax(-1, dtype=dtype) for chunk in chunks])


def mean_probabilities(network: Network, samples: Iterable[Tensor], inputs: Tensor) -> Tensor:
    """Average [N, classes] over weight vectors of what each predicts, summed in float64."""
    total, count = 0, 0
    for weights in samples:
        total = total + class_probabilities(network, weights, inputs).double()
        count += 1
    return total / count
