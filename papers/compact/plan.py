"""The scripts that reproduce the paper, in order, with their configs and times in each preset."""

from utils.report.paper import Plan, Step

MINUTE, HOUR = 60, 3600


def plans(quick: tuple, laptop: tuple, paper: tuple | None = None) -> dict[str, Plan]:
    """Return the plans by preset, each from its config and seconds.

    Without one of its own the paper preset has the laptop's.
    """
    return {"quick": Plan(*quick), "laptop": Plan(*laptop), "paper": Plan(*(paper or laptop))}


COMPACT_STEPS = (
    Step("MNIST_Ensemble", "ensemble", plans(("quick", 6), ("paper", 2 * MINUTE))),
    Step("MNIST_VI", "VI", plans(("quick", 6), ("paper", 2 * MINUTE))),
    Step("MNIST_net_matching", "net_matching", plans(("quick", 6), ("paper", 5 * MINUTE))),
    Step(
        "MNIST_number_of_transpositions", "transpositions",
        plans(("quick", 12), ("paper", 34 * MINUTE), ("bands", 5 * 34 * MINUTE)),
    ),
    Step("MNIST_HMC", "HMC", plans(("quick", 57), ("laptop", 1.6 * HOUR), ("test3.2", 20 * HOUR))),
    Step(
        "MNIST_eval", "eval", plans(("quick", 32), ("laptop", 50 * MINUTE), ("paper", 2 * HOUR)),
        inputs=(("hmc", "HMC"), ("ensemble", "ensemble"), ("vi", "VI")),
    ),
    Step(
        "MNIST_eval_pruning", "eval_pruning", plans(("quick", 25), ("paper", 2 * MINUTE)),
        inputs=(("eval", "eval"),),
    ),
)  # fmt: skip

COMPACT_ARTEFACTS = {  # what --only takes: the kinds of the runs that each is made from
    "table1": ("eval",),
    "figure2": ("net_matching",),
    "figure3": ("net_matching", "transpositions"),
    "figure4": ("eval",),
    "figure5": ("eval_pruning",),
}
