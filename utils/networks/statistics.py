"""Running statistics of batch normalisation, computed anew."""

from utils.networks.network import Network

import torch
from torch import Tensor


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
