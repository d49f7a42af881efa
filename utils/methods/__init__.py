"""Methods of approximating the posterior, and the driver that runs any of them.

shared_settings  settings that several methods share
method           what a method is: init, step, posterior, scores
training         minibatch training of a stack of networks
ensemble         deep ensembles
vi               mean-field variational inference
sgd              independent networks by the thousand
swag             SWAG
dropout          MC dropout
langevin         Langevin dynamics with gradients of minibatches
sgmcmc           SGLD, SGHMC, snapshot ensembles
curvature        GGN and Hessian of the loss, whole or by layers
laplace          the Laplace approximation
hmc              Hamiltonian Monte Carlo, a package of its own
registry         METHODS: all methods by name
processes        groups of modes in processes of one thread
reopening        runs that go on with more modes, or that several processes make
driver           open, resume, step, log, checkpoint, score, finish
"""
