"""All methods by name: the place to add one."""

from utils.methods.dropout import Dropout
from utils.methods.ensemble import Ensemble
from utils.methods.hmc.method import HMC
from utils.methods.laplace import Laplace
from utils.methods.method import Method
from utils.methods.sgd import SGD
from utils.methods.sgmcmc import SGHMC, SGLD, Snapshot
from utils.methods.swag import SWAG
from utils.methods.vi import VI

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        HMC(),
        Ensemble(),
        VI(),
        SGD(),
        SWAG(),
        Dropout(),
        SGLD(),
        SGHMC(),
        Snapshot(),
        Laplace(),
    )
}
