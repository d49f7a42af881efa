"""Methods of approximating the posterior.

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
"""
