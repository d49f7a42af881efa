"""Print the symmetries of networks: their groups of hidden units, and how many symmetries each has.

    python symmetries.py                                one line for each network
    python symmetries.py --network lenet --width 12     one line for each group of units

Units of a group can be permuted. "2 × 5" are 5 units for each of the 2 units that these lie within,
and move along with. ReLU units can be scaled by any positive factor, too; signs of tanh units can
be flipped.
"""

import argparse

from utils.networks.mlp import ACTIVATIONS, MLP
from utils.networks.network import Network
from utils.networks.registry import ARCHITECTURES, conv_network, conv_networks, usual_shape
from utils.report.tables import Table
from utils.runs.script import ends_in_a_sentence
from utils.settings.config import Parser
from utils.settings.errors import UserError
from utils.symmetry.counts import Symmetries, count_symmetries, total

# log10 of the permutations of the networks of Laurent et al. (2024). Of residual networks' their
# code removes the first number, those within blocks, and leaves those of residual streams.
PUBLISHED = {
    "mlp": "1,166.5",
    "optunet": "4.46 (28,800)",
    "lenet": "341.5",
    "resnet20_frn": "413.5 + 137.8",
    "resnet18": "3,956 + 1,978",
}
HEADINGS = ["units", "log10 permutations", "scalings", "signs"]


def main() -> None:
    options = read_options()
    if options.network is None:
        for name, value in vars(options).items():  # those in the table have their usual settings
            if value is not None:
                raise UserError(f"--{name} belongs to one network: give its --network as well.")
        table_of_networks().print()
        return
    network = network_of(options)
    counts = count_symmetries(network)
    rows = [
        [f"{name}: {' × '.join(map(str, network.units(name)))}", *cells(counts[name])]
        for name in counts
    ]
    rows.append(["all", *cells(total(counts))])
    Table(["group", *HEADINGS], rows, f"{network}: {num_weights(network)} weights").print()


def read_options() -> argparse.Namespace:
    parser = Parser(prog="symmetries.py", description=__doc__)
    parser.add_argument("--network", choices=ARCHITECTURES, help="(default: all)")
    parser.add_argument("--width", type=int, help="channels of the first convolution")
    parser.add_argument("--hidden_sizes", nargs="*", type=int, help="of an mlp (default: 512)")
    parser.add_argument(
        "--activation", choices=tuple(ACTIVATIONS), help="of an mlp (default: relu)"
    )
    parser.add_argument(
        "--input_shape", nargs=3, type=int, help="channels, height and width of the images"
    )
    return parser.parse_args()


def network_of(options: argparse.Namespace) -> Network:
    is_mlp = options.network == MLP.name
    foreign = ("width", "input_shape") if is_mlp else ("hidden_sizes", "activation")
    for name in foreign:
        if getattr(options, name) is not None:
            raise UserError(f"--network {options.network} has no {name}: leave --{name} out.")
    if is_mlp:
        sizes = [512] if options.hidden_sizes is None else options.hidden_sizes
        return MLP((784, *sizes, 10), options.activation or "relu")
    shape = options.input_shape or usual_shape(options.network)
    return conv_network(options.network, shape, width=options.width)


def table_of_networks() -> Table:
    """Return one row for each network in its usual size."""
    networks = {"mlp": MLP(), "mlp, tanh": MLP(activation="tanh")}
    networks |= {name: conv_network(name, usual_shape(name)) for name in conv_networks()}
    rows = []
    for name, network in networks.items():
        counts = cells(total(count_symmetries(network)))
        rows.append([name, num_weights(network), *counts, PUBLISHED.get(name, "–")])
    return Table(["network", "weights", *HEADINGS, "published log10"], rows)


def num_weights(network: Network) -> str:
    """Count the weights, without running statistics."""
    return f"{sum(slot.size for slot in network.slots if slot.role != 'buffer'):,}"


def cells(counts: Symmetries) -> list[str]:
    digits = 1 if counts.log10_permutations >= 10 else 2
    log10 = f"{counts.log10_permutations:,.{digits}f}"
    return [f"{counts.units:,}", log10, f"{counts.scalings:,}", f"{counts.signs:,}"]


if __name__ == "__main__":
    with ends_in_a_sentence("symmetries", "python symmetries.py"):
        main()
