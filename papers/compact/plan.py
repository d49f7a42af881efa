"""The scripts that reproduce the paper, in order, with their configs and times in each preset."""

from utils.report.paper import Plan, Step

MINUTE, HOUR = 60, 3600


def plans(quick: Plan, laptop: Plan, paper: Plan | None = None) -> dict[str, Plan]:
    """Return the plans by preset; without one of its own the paper preset has the laptop's."""
    return {"quick": quick, "laptop": laptop, "paper": paper or laptop}


STEPS = (
    Step("MNIST_Ensemble", "ensemble", plans(Plan("quick", 6), Plan("paper", 2 * MINUTE))),
    Step("MNIST_VI", "VI", plans(Plan("quick", 6), Plan("paper", 2 * MINUTE))),
    Step(
        "MNIST_net_matching", "net_matching",
        plans(Plan("quick", 6), Plan("paper", 5 * MINUTE)),
    ),
    Step(
        "MNIST_number_of_transpositions", "transpositions",
        plans(Plan("quick", 12), Plan("paper", 34 * MINUTE), Plan("bands", 5 * 34 * MINUTE)),
    ),
    Step(
        "MNIST_HMC", "HMC",
        plans(Plan("quick", 57), Plan("laptop", 1.6 * HOUR), Plan("test3.2", 20 * HOUR)),
    ),
    Step(
        "MNIST_eval", "eval",
        plans(Plan("quick", 32), Plan("laptop", 50 * MINUTE), Plan("paper", 2 * HOUR)),
        inputs=(("hmc", "HMC"), ("ensemble", "ensemble"), ("vi", "VI")),
    ),
    Step(
        "MNIST_eval_pruning", "eval_pruning",
        plans(Plan("quick", 9), Plan("paper", MINUTE)),
        inputs=(("eval", "eval"),),
    ),
)  # fmt: skip

ARTEFACTS = {  # what --only takes: the kinds of the runs that each is made from
    "table1": ("eval",),
    "figure2": ("net_matching",),
    "figure3": ("net_matching", "transpositions"),
    "figure4": ("eval",),
    "figure5": ("eval_pruning",),
}
