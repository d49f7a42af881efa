"""Rebasin: bring the units of networks into one order, that of a reference or a common one.

contributions      what hidden units contribute to the logits
assignment         the best places for units, given how similar they are
weight_matching    align a network to a reference by weights
response_matching  align a network to a reference by what units do on images
matching           these matchers by name
many_to_one        each unit of a reference takes its most similar one
rebase             move networks to a normal form, check their function, iterate the mean
consensus          align a set of networks to each other, with no reference among them
repair             give units the mean and deviation over images that other networks' have
paths              the line between two networks, and the loss barrier on it
"""
