"""Symmetries of networks: transformations that leave the function as it is.

permutation        the permutation of one group of units: cycles, NoT, uniform draws
transformation     an element of the group: permute, scale, flip signs; compose and invert
mass               the L2 mass of networks, and its minimum over scales
normal_forms       unit norm, unit variance, minimum mass, signs, sorting
unit_order         which unit holds the largest weight, and how orders change
counts             how many symmetries a network has; NoT by chance
contributions      what hidden units contribute to the logits
assignment         the best places for units, given how similar they are
weight_matching    align a network to a reference by weights
response_matching  align a network to a reference by what units do on images
matching           these matchers by name
many_to_one        each unit of a reference takes its most similar one
rebasin            move networks to a normal form, check their function, iterate the mean
consensus          align a set of networks to each other, with no reference among them
repair             give units the mean and deviation over images that other networks' have
paths             the line between two networks, and the loss barrier on it
"""
