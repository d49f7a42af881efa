"""Networks as forward functions of one flat weight vector, with tables of their slots.

Modules, each importing only from those before it:

    autograd         gradients of any network by autograd, and the protocol of passes over data
    network          Network, Slot, Group: what every architecture has
    layers           layers that PyTorch lacks, or has in a slow form only
    mlp_gradients    the MLP's gradient in closed form, on batches and over a data set
    conv_network     what convolutional networks share
    native           networks in C, a package of its own
    mlp              the multilayer perceptron
    optunet          OptuNet, of 392 weights
    lenet            LeNet-5
    resnet           residual networks, with filter response or batch normalisation
    registry         networks by name, network.json
    jacobians        derivatives of logits by weights, image by image
    predictions      class probabilities and averages of them; running statistics recomputed
    safetensors      files of named tensors
    state_dicts      weights from and to torch.nn modules
"""
