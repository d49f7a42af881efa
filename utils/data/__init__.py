"""Data sets: where they come from, and what networks are trained and tested on.

download             fetch files with package clients and from torchvision's hosts
formats              turn files into images and labels
sources              list each data set's files, checksums and sources, and read them
datasets             load a data set, or some of its classes, and prepare it for a network
batches              shuffle, crop and flip training images for a stack of networks
out_of_distribution  pair a data set with images of another, or with corrupted ones
user_arrays          read inputs and labels that users give as arrays
"""
