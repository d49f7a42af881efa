"""Full-batch Hamiltonian Monte Carlo.

Modules, each importing only from those before it:

    neighbour_list   which training points a force looks at
    potential        the log joint, its gradient, and forces along a trajectory
    mass             the metric of momenta, and how it is learnt
    fixed_weights    a control without symmetries: weights of infinite mass
    leapfrog         trajectories, and whether they lead back to their start
    adaptation       step sizes, lengths of trajectories, temperatures of an annealed likelihood
    annealing        which annealed chains are left out
    chains           transitions, and several chains that make them
    anchored         starts that look like samples
    record           samples, trace, diagnostics and checkpoints on disk
    display          the progress bar, the printed summary and warnings
    method           settings, and the run of all chains by one process or several
"""
