"""The scripts that reproduce the paper, in order, with their configs and times in each preset."""

from papers.compact.plan import COMPACT_STEPS, MINUTE, plans
from utils.report.paper import Step

# Both papers look at the same chain and ensemble.
SHARED = {step.kind: step for step in COMPACT_STEPS}


def made_by(config_name: str) -> dict[str, str]:
    """Return the scripts that make runs of a kind, as the presets do, for those who lack one."""
    networks = "train.py --method sgd"
    if config_name == "quick":  # train.py's own quick config does not reach modes with SGD
        networks += " --config_name networks_quick"
    return {"sgd": networks, "HMC": "MNIST_HMC.py", "ensemble": "MNIST_Ensemble.py"}


# Kinds of runs, in the order of Table 1.
APPROXIMATIONS = ("dropout", "VI", "SWAG", "Laplace", "SGHMC", "SGLD", "snapshot")

SYMMETRY_STEPS = (
    Step(
        "symmetry_toy", "symmetry_toy", plans(("quick", 5), ("paper", 20)), dataset="gaussians"
    ),
    Step(
        "train", "sgd", plans(("networks_quick", 15), ("optunet", 45 * MINUTE)),
        arguments=("--method", "sgd"),
    ),
    Step(
        "symmetry_diversity", "symmetry_diversity", plans(("quick", 10), ("paper", 5 * MINUTE)),
        inputs=(("networks", "sgd"),),
    ),
    *(
        Step(
            "train", kind, plans(("posterior_quick", 15), (f"{kind.lower()}_optunet", 3 * MINUTE)),
            arguments=("--method", kind.lower()),
        )
        for kind in APPROXIMATIONS
    ),
    Step(  # at modes of the posterior that the methods approximate
        "train", "networks", plans(("networks_quick", 15), ("optunet_map", 6 * MINUTE)),
        arguments=("--method", "sgd"), prefix="sgd",
    ),
    # In the quick preset the chain of both papers, with the network and prior of the methods.
    Step("MNIST_HMC", "chain", plans(("quick", 57), ("optunet", 30 * MINUTE)), prefix="HMC"),
    Step(
        "symmetry_table", "symmetry_table", plans(("quick", 40), ("optunet", 10 * MINUTE)),
        inputs=(("networks", "networks"), ("hmc", "chain")), posteriors=APPROXIMATIONS,
    ),
    Step(
        "symmetry_mass", "symmetry_mass", plans(("quick", 3), ("paper", 10)),
        inputs=(("posterior", "sgd"),),
    ),
    Step("symmetry_balance", "symmetry_balance", plans(("quick", 15), ("paper", 15 * MINUTE))),
    Step("symmetry_order", "symmetry_order", plans(("quick", 5), ("paper", 5 * MINUTE))),
    SHARED["HMC"],
    SHARED["ensemble"],
    Step(
        "symmetry_marginals", "symmetry_marginals", plans(("quick", 5), ("paper", 2 * MINUTE)),
        posteriors=("sgd", "chain"),
    ),
    Step(
        "symmetry_compact", "symmetry_compact", plans(("quick", 15), ("paper", 5 * MINUTE)),
        posteriors=("HMC", "ensemble"),
    ),
)  # fmt: skip

SYMMETRY_ARTEFACTS = {  # what --only takes: the kinds of the runs that each is made from
    "figure1": ("symmetry_toy",),
    "figure2": ("symmetry_mass", "symmetry_balance"),
    "figure3": ("symmetry_diversity",),
    "table1": ("symmetry_table",),
    "poster": ("symmetry_marginals",),
    "section5.2": ("symmetry_order",),
}
