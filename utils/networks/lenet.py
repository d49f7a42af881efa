"""LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, as it is used today.

    conv w, 5×5 · ReLU · max-pool 2 · conv 8w/3, 5×5 · ReLU · max-pool 2 · linear 20w, 14w, classes

With the usual width w = 6 these are 6, 16, 120 and 84 units.
"""

from dataclasses import dataclass
from functools import cached_property

from utils.networks.conv_network import convolution, linear
from utils.networks.layers import convolve, linear_map, max_pool, pooled_convolution
from utils.networks.native.kernels import CompiledNetwork
from utils.networks.network import Group, Slot, lay_out

KERNEL = 5


@dataclass(frozen=True)
class LeNet(CompiledNetwork):
    width: int = 6  # channels of the first convolution

    name = "lenet"
    smallest_image = 16

    @cached_property
    def groups(self) -> dict[str, Group]:
        sizes = (self.width, round(self.width * 8 / 3), self.width * 20, self.width * 14)
        return dict(zip(("c1", "c2", "h1", "h2"), map(Group, sizes), strict=True))

    @property
    def constants(self) -> dict[str, int]:
        units = {name.upper(): group.size for name, group in self.groups.items()}
        return super().constants | units

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        c1, c2, h1, h2 = (group.size for group in self.groups.values())
        channels, *size = self.input_shape
        maps = [((side - KERNEL + 1) // 2 - KERNEL + 1) // 2 for side in size]
        kernel = (KERNEL, KERNEL)
        return lay_out(
            *convolution("conv1", (c1, channels, *kernel), "c1", None, bias=True),
            *convolution("conv2", (c2, c1, *kernel), "c2", "c1", bias=True),
            *linear("fc1", h1, (c2, *maps), "h1", ("c2", None, None)),
            *linear("fc2", h2, (h1,), "h2", ("h1",)),
            *linear("fc3", self.num_classes, (h2,), None, ("h2",)),
        )

    def forward(self, tensors, images, statistics=None):
        (w1, b1), (w2, b2), *dense = zip(*[iter(tensors.values())] * 2, strict=True)
        first = (pooled_convolution(images, w1, 2) + b1[:, None, None]).relu()
        second = max_pool(convolve(first, w2), 2)
        second = (second + b2[:, None, None]).relu()
        hidden, values = {"c1": first, "c2": second}, second.flatten(1)
        *dense, (weight, bias) = dense
        for name, (w, b) in zip(("h1", "h2"), dense, strict=True):
            values = hidden[name] = linear_map(values, w.flatten(1), b).relu()
        return hidden, linear_map(values, weight, bias)
