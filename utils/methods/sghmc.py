"""SGHMC: Langevin dynamics with momentum and gradients of minibatches (Chen et al. 2014).

The steps, and how exact they are, are described in `utils.methods.langevin`.
"""

from dataclasses import dataclass

from utils.methods.langevin import Langevin, LangevinConfig
from utils.report.figures import SKY, Look
from utils.runs.config import option


@dataclass(frozen=True, kw_only=True)
class SGHMCConfig(LangevinConfig):
    learning_rate: float = option(
        0.02, "step size: h times the number of images, as SGD's", above=0
    )
    momentum: float = option(
        0.9, "share of the velocity that a step keeps; the rest is friction", minimum=0, below=1
    )


class SGHMC(Langevin):
    name, kind, title = "sghmc", "SGHMC", "SGHMC"
    look = Look(SKY, "--", "^")
    Config = SGHMCConfig
