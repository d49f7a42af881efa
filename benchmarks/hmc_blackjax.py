"""blackjax's leapfrog steps on the same posterior, for benchmarks/hmc.py.

Run in the environment of requirements-peers.txt with a problem file (.npz: images, labels,
weights, momentum, sizes). Each line "N step_size" on stdin makes N steps from the given state;
the answer is a JSON line with the change of the energy.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import integrators, metrics
from peer_posterior import log_density_of

problem = np.load(sys.argv[1])
log_density = log_density_of(problem)
metric = metrics.gaussian_euclidean(jnp.ones(problem["weights"].size))
one_step = integrators.velocity_verlet(log_density, metric.kinetic_energy)


@jax.jit
def steps(state, count, step_size):
    return jax.lax.fori_loop(0, count, lambda _, s: one_step(s, step_size), state)


def energy(state) -> float:
    """H in float64 but for the log density, which JAX sums in float32."""
    momentum = np.asarray(state.momentum, dtype=np.float64)
    return 0.5 * float(momentum @ momentum) - float(state.logdensity)


start = integrators.new_integrator_state(
    log_density, jnp.asarray(problem["weights"]), jnp.asarray(problem["momentum"])
)
steps(start, 1, 1e-4).position.block_until_ready()  # compile
print("ready", flush=True)
for line in sys.stdin:
    count, step_size = line.split()
    end = steps(start, int(count), float(step_size))
    end.position.block_until_ready()
    print(json.dumps({"change": energy(end) - energy(start)}), flush=True)
