"""Forward and backward passes of one network over a fixed data set, some rows at a time.

This is all that full-batch gradients need to know of a network, whatever its architecture.
"""

from typing import Protocol

from torch import Tensor


class DataPasses(Protocol):
    """Made once per data set by `network.data_passes(images)`.

    A gradient takes one `begin`, a `forward` and a `backward` for each chunk of rows, and one
    `finish`. An implementation may compute everything in buffers that it uses again: logits are
    valid until the next `forward`.
    """

    chunk_rows: int  # the most rows of one forward pass
    flops: float  # floating-point operations of its largest matrix product; infinity if unknown

    def begin(self, weights: Tensor, gradient: Tensor) -> None:
        """Bind the weights [d], and set the gradient [d] to zero."""
        ...

    def forward(self, rows: slice | Tensor) -> Tensor:
        """Return the logits [n, classes] of the images at these rows."""
        ...

    def backward(self, errors: Tensor, active: Tensor | None = None) -> None:
        """Add the gradient whose derivatives by the logits of the last forward pass are `errors`.

        With `active`, an index into that pass's rows, errors [len(active), classes] are given
        for these rows only and all others are zero.
        """
        ...

    def finish(self) -> None:
        """Complete the gradient."""
        ...
