"""The project's packages, each importing only from those before it.

    settings    settings of scripts: defaults, YAML, command line, sweeps; errors of users
    runs        run directories, checkpoints, records, random streams, processes
    data        data sets
    networks    networks as functions of a flat weight vector
    symmetry    permutations, scales and signs of hidden units; normal forms
    rebasin     matching the units of networks; paths between networks
    posteriors  what methods leave and evaluation sees
    distances   MMD between sets of networks, with and without symmetries
    evaluation  predictions, metrics, standard errors, diagnostics
    quality     calibration, detection, diversity
    report      tables, figures, HTML pages
    methods     what makes posteriors: training, variational inference, HMC
    driver      the one driver that runs any method

Supported are Linux and macOS; Windows through WSL.
"""

import os
import sys

if sys.platform == "win32":  # no fcntl, which locks run directories, and no POSIX signals
    print(
        "This project runs on Linux and macOS. On Windows, run it in WSL, the Windows Subsystem "
        "for Linux (`wsl --install`).",
        file=sys.stderr,
    )
    sys.exit(2)

# Set before torch is imported, which reads these variables as it loads. Threads that wait for
# others spin for some 20 µs, which bridges the gaps between the products of a short step, and then
# sleep. Spinning on makes short steps many times slower on a machine that has other work to do;
# sleeping at once, 1.6 times slower on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
