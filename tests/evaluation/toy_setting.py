"""An evaluation of a small network on random images, three of whose pixels are dead."""

from dataclasses import replace

from utils.data.datasets import Dataset
from utils.evaluation.setting import EvaluationConfig, Setting
from utils.networks.mlp import MLP

import torch

NETWORK = MLP((12, 8, 4))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def setting(**numbers) -> Setting:
    images = torch.rand(120, 12, generator=random(1))
    images[:, :3] = 0  # dead pixels
    labels = torch.randint(4, (120,), generator=random(2))
    data = Dataset("toy", images, labels, images, labels)
    config = EvaluationConfig(study_images=120, num_pairs=4, num_draws=50, rank=4, **numbers)
    return Setting(NETWORK, data, config, images=as_images(data))


def as_images(data: Dataset) -> Dataset:
    images = data.train_images.view(-1, 1, 1, 12)
    return replace(data, train_images=images, test_images=images)


def noisy_copies(count: int, noise: float = 0.05) -> torch.Tensor:
    weights = 3 * NETWORK.initial_weights(random(0))
    return torch.stack(
        [weights + noise * torch.randn(weights.shape, generator=random(k)) for k in range(count)]
    )
