"""Posterior approximations, whatever method made them: weights that can be drawn.

prior            N(0, s²): potential, gradient, KL, draws
samples          sets of weight vectors, on disk or in memory
named_samples    sets of networks in safetensors files
gaussian         independent weights, and their evidence lower bound
moments          mean and variance of a stream, in blocks
low_rank         a Gaussian with covariances, up to a rank
dropout          a network with hidden units dropped at random
block_gaussian   a Gaussian whose covariance has dense or Kronecker blocks
posterior        the protocol: draw, moved, save; equal shares of several posteriors
exchange         networks from and to other programs: files, folders, tars
compact          q_r with the rebasin that it was fitted to
files            open_posterior: read any of them from a directory
"""
