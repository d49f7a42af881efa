"""Symmetries of networks: transformations that leave the function as it is.

permutation     the permutation of one group of units: cycles, NoT, uniform draws
transformation  an element of the group: permute, scale, flip signs; compose and invert
mass            the L2 mass of networks, and its minimum over scales
normal_forms    unit norm, unit variance, minimum mass, signs, sorting
unit_order      which unit holds the largest weight, and how orders change
counts          how many symmetries a network has; NoT by chance
"""
