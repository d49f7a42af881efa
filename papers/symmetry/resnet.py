"""Table 1 and Figure 3 with the paper's own network: ResNet-18 on CIFAR-100, on a GPU.

Only the paper preset has these steps. They share everything but the runs with the same steps for
OptuNets. VI and SGHMC are left out, because they refuse batch normalisation.
"""

from dataclasses import replace

from papers.compact.plan import HOUR
from papers.symmetry import quality_claims
from papers.symmetry.paper import PAPER
from utils.report.paper import Plan, Step

DATASET = "CIFAR100"
BATCH_NORM_METHODS = ("dropout", "SWAG", "Laplace", "snapshot")


def gpu_step(script: str, kind: str, config: str, hours: float, **fields) -> Step:
    """Return a step of the paper preset on a GPU; its hours are guessed, as we have none."""
    plan = {"paper": Plan(config, hours * HOUR)}
    return Step(script, kind, plan, dataset=DATASET, needs_gpu=True, **fields)


def train_step(kind: str, method: str, config: str, modes: int, hours: float, prefix="") -> Step:
    arguments = ("--method", method, "--num_modes", str(modes))
    return gpu_step("train", kind, config, hours, arguments=arguments, prefix=prefix)


RESNET_STEPS = (
    # One run: Figure 3 and Table 1 call it by different names.
    train_step("sgd", "sgd", "resnet18", 100, 65),
    train_step("networks", "sgd", "resnet18", 100, 65, prefix="sgd"),
    *(
        train_step(kind, kind.lower(), f"{kind.lower()}_resnet18", 5, hours)
        for kind, hours in zip(BATCH_NORM_METHODS, (4, 4, 4, 13), strict=True)
    ),
    gpu_step("symmetry_diversity", "symmetry_diversity", "paper", 2, inputs=(("networks", "sgd"),)),
    gpu_step(
        "symmetry_table", "symmetry_table", "resnet18", 3, inputs=(("networks", "networks"),),
        posteriors=BATCH_NORM_METHODS,
    ),
)  # fmt: skip
CLAIMS = (
    quality_claims.several_modes_are_better, quality_claims.no_correlation,
    quality_claims.several_modes_are_more_diverse, quality_claims.plain_networks_suffice,
    quality_claims.collapse_is_absent,
)  # fmt: skip

RESNET = replace(
    PAPER,
    name="resnet",
    heading="ResNet-18 on CIFAR-100",
    steps=RESNET_STEPS,
    artefacts={"table1": ("symmetry_table",), "figure3": ("symmetry_diversity",)},
    # The conclusions at the top of the report are about OptuNets.
    claims=tuple(replace(claim, in_short={}) for claim in CLAIMS),
    sections=tuple(each for each in PAPER.sections if each.anchor in ("quality", "diversity")),
    cautions=(),
    numbers={
        "resnet_posteriors": PAPER.numbers["posteriors"],
        "resnet_diversity": PAPER.numbers["diversity"],
    },
)
