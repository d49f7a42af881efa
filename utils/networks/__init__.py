"""Networks as forward functions of one flat weight vector, with tables of their slots.

Modules, each importing only from those before it:

    data_passes      the protocol of passes over a fixed data set
    autograd         such passes by autograd, for any network
    network          Network, Slot, Group: what every architecture has
    mlp_gradients    the MLP's gradient in closed form
    mlp_passes       the MLP's passes over a fixed data set
    mlp              the multilayer perceptron
    registry         networks by name, network.json
    predictions      class probabilities of networks and averages of them
    state_dicts      weights from and to torch.nn modules
"""
