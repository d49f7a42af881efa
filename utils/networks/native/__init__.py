"""Networks in C, for those so small that PyTorch spends its time between operations.

compilation  C code, compiled where it runs
small_mlp    the gradient of a small MLP over a data set
kernels      convolutional networks: logits and gradients
"""
