"""The gradient of a small MLP over a whole data set, in one call of C code (small_mlp.c)."""

import ctypes

from utils.networks.mlp_gradients import live_inputs
from utils.networks.native import compilation
from utils.networks.native.compilation import LANES, Buffer, address

import torch
from torch import Tensor

MOST_UNITS, MOST_IMAGES = 64, 1000  # for more, PyTorch's matrix products are as fast
COLUMNS = 2 * LANES  # the C code takes so many columns at a time


class SmallMLPGradient:
    """The NLL of an MLP with one hidden layer of ReLU, and its gradient, on fixed images.

    The likelihood has no gradient by weights of pixels that are zero in all images, so these are
    left out.
    """

    def __init__(self, library: ctypes.CDLL, images: Tensor, labels: Tensor):
        live, inputs = live_inputs(images, COLUMNS)
        self._library, count = library, len(images)
        sizes = [ctypes.c_long(number) for number in (*inputs.shape, len(live))]
        library.space_bytes.restype = ctypes.c_long
        space, self._nll = Buffer(), images.new_empty(count)
        space.hold(library.space_bytes(*sizes[:2]))
        self._fixed = (*sizes, *map(address, (inputs, live, labels, self._nll)), space.address)
        self._kept = inputs, live, labels, space  # C has only their addresses

    def __call__(self, weights: Tensor, gradient: Tensor) -> Tensor:
        """Set `gradient` [d] to that of the NLL at weights [d]; return the NLL of each image.

        The NLLs are valid until the next call.
        """
        if not (weights.is_contiguous() and gradient.is_contiguous()):
            raise ValueError("Weights and gradient must be whole vectors.")
        self._library.small_mlp(*self._fixed, address(weights), address(gradient))
        return self._nll


def small_mlp_gradient(network, images: Tensor, labels: Tensor) -> SmallMLPGradient | None:
    """Return the gradient of an MLP on these images; None where PyTorch has to compute it."""
    pixels, *hidden, classes = network.sizes
    small = len(hidden) == 1 and hidden[0] <= MOST_UNITS and classes <= LANES
    if not small or len(images) > MOST_IMAGES or network.activation != "relu":
        return None
    if images.dtype != torch.float32 or images.device.type != "cpu":
        return None
    library = compilation.library("small_mlp", PIXELS=pixels, UNITS=hidden[0], CLASSES=classes)
    return library and SmallMLPGradient(library, images.flatten(1), labels)
