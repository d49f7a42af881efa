"""The posterior of an MLP or LeNet, in JAX; used in the peers' environment."""

import itertools
import json
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def log_density_of(problem) -> Callable[[Array], Array]:
    """Return log p(w | data) up to a constant, of the arrays images and labels.

    `sizes` are those of an MLP, or `lenet` has the shapes of LeNet's tensors in JSON.
    The prior is N(0, 1), or N(0, prior_std²).
    """
    images, labels = jnp.asarray(problem["images"]), jnp.asarray(problem["labels"])
    precision = float(problem["prior_std"]) ** -2 if "prior_std" in problem else 1.0
    if "lenet" in problem:
        shapes = json.loads(str(problem["lenet"]))
    else:
        pairs = itertools.pairwise(problem["sizes"].tolist())
        shapes = [shape for inputs, outputs in pairs for shape in ((outputs, inputs), (outputs,))]
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))

    def log_density(weights: Array) -> Array:
        parts = zip(jnp.split(weights, ends[:-1]), shapes, strict=True)
        tensors = [part.reshape(shape) for part, shape in parts]
        values = images
        for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
            if weight.ndim == 4 and values.ndim == 4 and weight.shape[-2:] != values.shape[-2:]:
                values = jax.lax.conv(values, weight, (1, 1), "VALID") + bias[:, None, None]
                values = jax.lax.reduce_window(
                    values, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"
                )
            else:
                inputs = values.reshape(len(values), -1)
                values = inputs @ weight.reshape(len(weight), -1).T + bias
            values = jax.nn.relu(values) if bias is not tensors[-1] else values
        chosen = jnp.take_along_axis(jax.nn.log_softmax(values), labels[:, None], axis=1)
        return chosen.sum() - 0.5 * precision * jnp.sum(weights**2)

    return log_density
