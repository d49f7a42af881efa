"""SGLD, SGHMC and snapshot ensembles: three settings of the steps of `utils.methods.langevin`.

SGLD (Welling and Teh 2011) has no momentum, SGHMC (Chen et al. 2014) has one. How exact they are is
in docs/methods.md.

A snapshot ensemble is the networks at the ends of cycles of one training (Huang et al. 2017). SGD
with momentum starts each cycle at the full learning rate, which then falls to 0 as a cosine, step
by step. These are the same cycles without noise. Snapshots of one training are not independent:
several modes are several trainings.
"""

from dataclasses import dataclass

from utils.methods.langevin import Langevin, LangevinConfig, check_cycles, cosine_rate
from utils.methods.shared_settings import AugmentationConfig, ModesConfig, PriorConfig
from utils.report.figures import GOLD, SKY, Look
from utils.settings.config import option


class SGLD(Langevin):
    name, kind, title = "sgld", "SGLD", "SGLD"
    look = Look(SKY, "-.", "v")
    Config = LangevinConfig


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


@dataclass(frozen=True, kw_only=True)
class SnapshotConfig(PriorConfig, ModesConfig, AugmentationConfig):
    learning_rate: float = option(0.05, "step size of SGD at the start of a cycle", above=0)
    momentum: float = option(0.9, "momentum of SGD", minimum=0, below=1)
    batch_size: int = option(100, "images per step", minimum=1)
    num_epochs: int = option(50, "passes over the training images, in each mode", minimum=1)
    num_cycles: int = option(5, "cycles, and so snapshots, in each mode", minimum=1)
    num_draws: int = option(1000, "snapshots that the scores average over, at most", minimum=1)

    def __post_init__(self):
        super().__post_init__()
        check_cycles(self.num_epochs, self.num_cycles)

    @property
    def cycle_epochs(self) -> int:
        return self.num_epochs // self.num_cycles

    def pace(self, epochs: float) -> tuple[float, float]:
        """Return the learning rate after so many epochs, and the temperature, which is 0."""
        return cosine_rate(self.learning_rate, epochs / self.cycle_epochs % 1), 0.0

    def collects(self, epoch: int) -> bool:
        """Return whether a cycle ends with this epoch, counted from 1."""
        return epoch % self.cycle_epochs == 0


class Snapshot(Langevin):
    name, kind, title = "snapshot", "snapshot", "snapshots"
    look = Look(GOLD, ":", "X")
    Config = SnapshotConfig
    takes_batch_norm = True
