"""Fit a mean-field Gaussian posterior by variational inference.

The VI column of the paper's Table 1, and VI's μ and σ of Figures 4 and 5.

    python MNIST_VI.py                        the paper's settings
    python MNIST_VI.py --config_name quick    seconds: a smaller net, part of the data

Leaves in its run directory posterior.npz (mean, std) with network.json, metrics.jsonl (per epoch:
NLL of the training images along the epoch, KL to the prior at its end, ELBO = −NLL − KL, test
accuracy of the mean network), training.png and .pdf (the same drawn) and summary.json (final test
scores).
"""

from utils.driver.run_method import run_method
from utils.methods.vi import VI
from utils.runs.script import run_script

METHOD = VI()
KIND, CONFIG = METHOD.kind, METHOD.Config

if __name__ == "__main__":
    run_script(lambda config: run_method(METHOD, config), CONFIG, __file__, __doc__)
