"""Distances between posteriors, each seen as a set of weight vectors.

mmd           kernel matrices, unbiased MMD², its null by permuting blocks, its power
units         hidden units as sets, without order and scale
spaces        where sets are compared: weights, without symmetries, functions, units
classifier    two-sample test by a classifier
"""
