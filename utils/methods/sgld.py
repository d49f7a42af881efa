"""SGLD: Langevin dynamics with gradients of minibatches (Welling and Teh 2011).

The steps, and how exact they are, are described in `utils.methods.langevin`.
"""

from utils.methods.langevin import Langevin, LangevinConfig
from utils.report.figures import SKY, Look


class SGLD(Langevin):
    name, kind, title = "sgld", "SGLD", "SGLD"
    look = Look(SKY, "-.", "v")
    Config = LangevinConfig
