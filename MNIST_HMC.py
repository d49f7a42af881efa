"""Sample the posterior of a network by full-batch Hamiltonian Monte Carlo.

The HMC columns of the paper's Table 1 and its Figures 4 and 5 are made from these samples.

    python MNIST_HMC.py                          1 to 3 hours: the paper's posterior, 250 samples
    python MNIST_HMC.py --config_name test3.2    the paper's settings, exactly: days
    python MNIST_HMC.py --config_name quick      1 or 2 minutes: a smaller net, part of the data
    python MNIST_HMC.py --resume --num_samples 500      250 more samples of the same chain
    torchrun --nproc-per-node 2 MNIST_HMC.py --parallel data      the images over 2 processes

Writes into its run directory

    samples.npy        [chains · samples, weights], one chain after the other
    network.json       the network; posterior.json: that these are samples
    chains.json        how many chains of how many samples; of annealed ones from the prior also
                       their estimated log weights, R-hat of each one's potential and that of the
                       best, and which are left out (docs/hmc.md)
    trace.jsonl        a record per transition, burn-in included
    quantities.npy     the quantities that are diagnosed, per sample
    diagnostics.json   R-hat and effective sample sizes
    metrics.jsonl      test accuracies along the way
    summary.json       scores, acceptance, violations of neighbour lists, divergences after burn-in,
                       trajectories that were followed back and missed their start,
                       and ess_per_hour: effective samples of the test log-likelihood

A kill costs at most --checkpoint_seconds and the transition under way; Ctrl-C the latter only.
"""

from utils.driver.run_method import run_method
from utils.methods.hmc.method import HMC
from utils.runs.script import run_script

METHOD = HMC()
KIND, CONFIG = METHOD.kind, METHOD.Config

if __name__ == "__main__":
    run_script(lambda config: run_method(METHOD, config), CONFIG, __file__, __doc__)
