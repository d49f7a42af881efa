"""Train a deep ensemble: independent networks, each at a mode (MAP) of the posterior.

The ensemble columns of the paper's Table 1 and Figures 4 and 5 start from it.

    python MNIST_Ensemble.py                        the paper's settings
    python MNIST_Ensemble.py --config_name quick    seconds: a smaller net, part of the data

Leaves in its run directory samples.npy [members, weights] with network.json, metrics.jsonl (per
epoch: losses, test accuracy of the ensemble), training.png and .pdf (the same drawn) and
summary.json (final test scores).
"""

from utils.driver.run_method import run_method
from utils.methods.ensemble import Ensemble
from utils.runs.script import run_script

METHOD = Ensemble()
KIND, CONFIG = METHOD.kind, METHOD.Config

if __name__ == "__main__":
    run_script(lambda config: run_method(METHOD, config), CONFIG, __file__, __doc__)
