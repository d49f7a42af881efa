"""ResNet-18 with batch normalisation (He et al. 2016), with the stem for small images.

The running statistics of its normalisations are slots like weights. In training, batches are
normalised by statistics of their own.
"""

from dataclasses import dataclass

from utils.networks.layers import batch_norm, batch_norm_of_batch
from utils.networks.network import RELU, Slot
from utils.networks.resnet import ResNet

import torch.nn.functional as F


@dataclass(frozen=True)
class ResNet18(ResNet):
    """Its ReLU units can be scaled behind the normalisations, which undo all scales before them."""

    width: int = 64

    name = "resnet18"
    stages = (2, 2, 2, 2)
    kind = RELU
    activation = staticmethod(F.relu)

    def norm_slots(self, name: str, group: str, channels: int) -> list[Slot]:
        weight = Slot(f"{name}.weight", (channels,), (group,), (1,), center=1.0)
        bias = weight._replace(name=f"{name}.bias", role="bias", center=0.0)
        mean = bias._replace(name=f"{name}.running_mean", role="buffer", powers=(0,))
        variance = mean._replace(name=f"{name}.running_var", center=1.0)
        return [weight, bias, mean, variance]

    def normalize(self, values, name, tensors, statistics):
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        buffers = (f"{name}.running_mean", f"{name}.running_var")
        if statistics is None:
            return batch_norm(values, weight, bias, *(tensors[buffer] for buffer in buffers))
        normal, *of_batch = batch_norm_of_batch(values, weight, bias)
        statistics.update(zip(buffers, of_batch, strict=True))
        return normal
