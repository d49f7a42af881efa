"""Posterior approximations, whatever method made them: weights that can be drawn.

prior            N(0, s²): potential, gradient, KL, draws
posterior        the protocol: draw, moved, save
samples          sets of weight vectors, on disk or in memory
named_samples    sets of networks in safetensors files
gaussian         independent weights
evidence         the evidence lower bound of a Gaussian
moments          mean and variance of a stream, in blocks
low_rank         a Gaussian with covariances, up to a rank
dropout          a network with hidden units dropped at random
block_gaussian   a Gaussian whose covariance has dense or Kronecker blocks
mixture          equal shares of several posteriors
exchange         networks from and to other programs: files, folders, tars
compact          q_r with the rebasin that it was fitted to
files            open_posterior: read any of them from a directory
members          all weight vectors of a set of networks, in memory
"""
