"""Chains of numpyro's or blackjax's NUTS on a posterior, for benchmarks/samplers.py.

    python samplers_nuts.py PROBLEM.npz numpyro|blackjax NUM_WARMUP NUM_SAMPLES OUTPUT.npz

Run in the environment of requirements-peers.txt. The problem has images, labels, sizes and the
first weights of each chain. The output has `samples` [chains, samples, d], `steps`, the leapfrog
steps of each transition, and the seconds of warm-up and sampling. Compilation is not counted.
"""

import sys
import time
from collections.abc import Callable

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS
from peer_posterior import log_density_of


def main() -> None:
    problem = np.load(sys.argv[1])
    sampler, output = SAMPLERS[sys.argv[2]], sys.argv[5]
    num_warmup, num_samples = map(int, sys.argv[3:5])
    keys = jax.random.split(jax.random.key(0), len(problem["starts"]))
    chains = [
        sampler(log_density_of(problem), jnp.asarray(start), key, num_warmup, num_samples)
        for start, key in zip(problem["starts"], keys, strict=True)
    ]
    samples, steps, warmup_seconds, sampling_seconds = zip(*chains, strict=True)
    np.savez(
        output, samples=np.stack(samples), steps=np.stack(steps),
        warmup_seconds=sum(warmup_seconds), sampling_seconds=sum(sampling_seconds),
    )  # fmt: skip


def numpyro_chain(log_density, start, key, num_warmup: int, num_samples: int) -> tuple:
    """Return samples, steps and seconds; the first transitions adapt step size and mass."""
    kernel = NUTS(potential_fn=lambda weights: -log_density(weights))
    state = kernel.init(key, num_warmup, start, model_args=(), model_kwargs={})

    @jax.jit
    def transition(state):
        state = kernel.sample(state, (), {})
        return state, state.z, state.num_steps

    state, _, _, warmup_seconds = chain(transition, state, num_warmup)
    _, samples, steps, seconds = chain(transition, state, num_samples)
    return samples, steps, warmup_seconds, seconds


def blackjax_chain(log_density, start, key, num_warmup: int, num_samples: int) -> tuple:
    """Return samples, steps and seconds, after a window adaptation of step size and mass."""
    warmup_key, key = jax.random.split(key)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)

    def adapt(key, start):
        (state, settings), _ = adaptation.run(key, start, num_warmup)
        return state, settings

    adapt = jax.jit(adapt).lower(warmup_key, start).compile()
    begun = time.perf_counter()
    state, settings = jax.block_until_ready(adapt(warmup_key, start))
    warmup_seconds = time.perf_counter() - begun
    kernel = blackjax.nuts(log_density, **settings)

    @jax.jit
    def transition(state_and_key):
        state, key = state_and_key
        now, later = jax.random.split(key)
        state, info = kernel.step(now, state)
        return (state, later), state.position, info.num_integration_steps

    _, samples, steps, seconds = chain(transition, (state, key), num_samples)
    return samples, steps, warmup_seconds, seconds


def chain(transition: Callable, state, count: int) -> tuple:
    """Make transitions; return the last state, all positions, their steps, and the seconds."""
    jax.block_until_ready(transition(state))  # compile
    positions, steps, begun = [], [], time.perf_counter()
    for _ in range(count):
        state, position, num_steps = transition(state)
        positions.append(np.asarray(position))
        steps.append(int(num_steps))
    return state, np.stack(positions), np.array(steps), time.perf_counter() - begun


SAMPLERS = {"numpyro": numpyro_chain, "blackjax": blackjax_chain}

if __name__ == "__main__":
    main()
