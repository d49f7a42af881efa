"""Open the chains of a run of HMC in ArviZ: its summary, and a NetCDF file for its plots.

    pip install "arviz<1"
    python examples/chains_in_arviz.py runs/quick/HMC-MNIST-quick
    python examples/chains_in_arviz.py runs/quick/HMC-MNIST-quick --out chains.nc

What HMC has measured of every sample (quantities.npy) becomes one variable for each group, such as
`probability` or `invariants`; some of the weights (samples.npy) are the variable `single_weights`.
These follow the labels of hidden units, which chains may switch: a large R-hat of theirs is no sign
of bad mixing. Needs ArviZ and NumPy, and nothing of this repository.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

Variables = dict[str, np.ndarray]  # [chains, draws, entries] by name
Names = dict[str, list[str]]  # of the entries


def main() -> None:
    options = read_options()
    try:
        import arviz
    except ImportError:
        print('This example needs ArviZ: pip install "arviz<1"', file=sys.stderr)
        sys.exit(2)
    try:
        variables, names = read_chains(options.run, options.num_weights)
    except (OSError, KeyError, ValueError) as error:
        print(f"{options.run} is no run of HMC with diagnosed samples: {error}.", file=sys.stderr)
        sys.exit(2)
    chains = arviz.from_dict(
        posterior=variables,
        coords={f"{name}_of": entries for name, entries in names.items()},
        dims={name: [f"{name}_of"] for name in names},
    )
    print(arviz.summary(chains, kind="diagnostics").to_string())
    if options.out:
        chains.to_netcdf(str(options.out))
        print(f"Wrote {options.out}: arviz.plot_trace(arviz.from_netcdf({str(options.out)!r}))")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory of MNIST_HMC.py")
    parser.add_argument(
        "--num_weights", type=int, default=10, metavar="INT",
        help="weights to look at, evenly spaced (default: 10)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all as NetCDF")
    return parser.parse_args()


def read_chains(run: Path, num_weights: int) -> tuple[Variables, Names]:
    """Return what was measured, in groups, and some weights."""
    layout = json.loads((run / "chains.json").read_text())
    measured = json.loads((run / "diagnostics.json").read_text())["quantities"]
    quantities = by_chain(run / "quantities.npy", layout)
    variables, names = {}, {}
    for column, name in enumerate(measured):
        group, _, entry = name.partition("/")
        names.setdefault(group, []).append(entry or group)
        variables.setdefault(group, []).append(quantities[:, :, column])
    variables = {name: np.stack(columns, -1) for name, columns in variables.items()}
    samples = by_chain(run / "samples.npy", layout)
    chosen = np.linspace(0, samples.shape[2] - 1, num_weights).round().astype(int)
    variables["single_weights"] = np.asarray(samples[:, :, chosen])
    names["single_weights"] = [str(number) for number in chosen]
    return variables, names


def by_chain(path: Path, layout: dict) -> np.ndarray:
    """Return an array [chains · samples, columns] as [chains, draws so far, columns]."""
    rows = np.load(path, mmap_mode="r")
    chains = rows.reshape(layout["num_chains"], layout["samples_per_chain"], rows.shape[1])
    return chains[:, : layout["stored_per_chain"]]


if __name__ == "__main__":
    main()
