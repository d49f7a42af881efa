"""Convolutional networks: the functions of torch.nn's, their sizes, and their gradients."""

from tests.networks import torch_modules
from tests.networks.conv_networks import SMALL, drawn_images, drawn_weights, small
from utils.networks.mlp import MLP
from utils.networks.predictions import recompute_statistics
from utils.networks.registry import conv_network
from utils.networks.state_dicts import read_layout
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import pytest
import torch
import torch.nn.functional as F

FULL = {  # input shape, weights without running statistics, torch.nn's
    "optunet": ((1, 28, 28), 392, torch_modules.OptuNet),
    "lenet grey": ((1, 28, 28), 44_426, lambda: torch_modules.LeNet(1, 4)),
    "lenet colour": ((3, 32, 32), 62_006, lambda: torch_modules.LeNet(3, 5)),
    "resnet8_frn": ((3, 32, 32), 20_122, lambda: torch_modules.frn_resnet(1, 8)),
    "resnet20_frn": ((3, 32, 32), 273_258, lambda: torch_modules.frn_resnet(3, 16)),
    "resnet18": ((3, 32, 32), 11_173_962, lambda: torch_modules.resnet18(64)),
}


def module_with(name, network, weights):
    """Return torch.nn's network with these weights, in their precision."""
    module = SMALL[name][1]().to(weights.dtype).eval()
    module.load_state_dict(read_layout(module.state_dict(), network=network).state_dict(weights))
    return module


def labels_for(network, *shape):
    return torch.randint(network.num_classes, shape, generator=generator(0, "labels"))


@pytest.mark.parametrize("name", FULL)
def test_number_of_weights(name):
    shape, count, module = FULL[name]
    network = conv_network(name.split()[0], shape)
    assert sum(slot.size for slot in network.slots if slot.role != "buffer") == count
    assert sum(parameter.numel() for parameter in module().parameters()) == count


@pytest.mark.parametrize("name", SMALL)
def test_the_function_is_that_of_the_module(name):
    network = small(name)
    stack = torch.stack([drawn_weights(network, seed) for seed in (1, 2)])
    images = drawn_images(network, 5)
    expected = torch.stack([module_with(name, network, weights)(images) for weights in stack])
    torch.testing.assert_close(network.outputs(stack, images), expected.detach())
    torch.testing.assert_close(network.outputs(stack[1], images), expected[1].detach())
    own_images = torch.stack([images, images.flip(0)])
    of_own = network.outputs(stack, own_images)
    torch.testing.assert_close(of_own[1].flip(0), expected[1].detach())


@pytest.mark.parametrize("name", SMALL)
def test_activations_are_by_group(name):
    network, count = small(name), 3
    activations = network.activations(drawn_weights(network), drawn_images(network, count))
    blocks = {network.groups[group].within for group in network.groups}
    assert set(activations) == set(network.groups) - blocks
    for group, values in activations.items():
        units = network.units(group)
        assert values.shape[: 1 + len(units)] == (count, *units)


@pytest.mark.parametrize("name", SMALL)
def test_gradient_by_finite_differences(name):
    """Along random directions. Batch normalisation has the statistics of the batch, as torch.nn's
    in training."""
    network = small(name)
    weights = drawn_weights(network)[None]
    inputs, labels = drawn_images(network, 4)[None], labels_for(network, 1, 4)
    gradient = torch.empty_like(weights)
    network.gradient(weights.clone(), gradient, 4)(inputs, labels, scale=0.5, keep=0)

    def loss(weights):
        logits, _ = network.batch_outputs(weights, inputs)
        return 0.5 * F.cross_entropy(logits[0], labels[0], reduction="sum")

    for seed in range(3):
        direction = torch.randn(weights.shape, generator=generator(seed), dtype=torch.float64)
        direction *= 1e-6
        change = (loss(weights + direction) - loss(weights - direction)) / 2
        slope = (gradient * direction).sum()
        torch.testing.assert_close(change, slope, rtol=1e-5, atol=1e-13)


@pytest.mark.parametrize("name", SMALL)
def test_gradient_is_that_of_the_module_in_training(name):
    network = small(name)
    weights = drawn_weights(network, dtype=torch.float32)
    module = module_with(name, network, weights).train()
    inputs = drawn_images(network, 6, dtype=torch.float32)
    labels = labels_for(network, 6)
    F.cross_entropy(module(inputs), labels).backward()
    stack, gradient = weights[None].clone(), torch.ones(1, len(weights))
    find = network.gradient(stack, gradient, 6)
    nll = find(inputs[None], labels[None], scale=1 / 6, keep=0.5)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    for slot in network.slots:
        tensor = named[slot.name]
        if slot.role == "buffer":  # updated in place, and without a gradient
            expected, updated = torch.full(slot.shape, 0.5), slot.of(stack[0])
            torch.testing.assert_close(updated, tensor, rtol=1e-4, atol=1e-6)
        else:
            expected = 0.5 + tensor.grad.reshape(slot.shape)
            assert torch.equal(slot.of(stack[0]), slot.of(weights))
        torch.testing.assert_close(slot.of(gradient[0]), expected, rtol=1e-3, atol=1e-5)
    assert nll.shape == (1, 6)


@pytest.mark.parametrize("name", [*SMALL, "silu"])
def test_a_member_of_a_stack_trains_as_it_would_alone(name):
    """Each has its own images; 20 members are more than are computed together."""
    network = MLP((6, 8, 3), "silu") if name == "silu" else small(name)
    count = 20 if name == "optunet" else 3
    stack = torch.stack([drawn_weights(network, k, torch.float32) for k in range(count)])
    alone, member = stack[-1:].clone(), count - 1
    inputs = torch.stack([drawn_images(network, 4, k, torch.float32) for k in range(count)])
    labels = labels_for(network, count, 4)
    velocities = torch.zeros_like(stack), torch.zeros_like(alone)
    steps = network.gradient(stack, velocities[0], 4), network.gradient(alone, velocities[1], 4)
    for _ in range(10):
        steps[0](inputs, labels, scale=1 / 4, keep=0.9)
        steps[1](inputs[member:], labels[member:], scale=1 / 4, keep=0.9)
        for weights, velocity in zip((stack, alone), velocities, strict=True):
            weights.sub_(velocity, alpha=0.01)
    torch.testing.assert_close(stack[member:], alone, rtol=1e-5, atol=1e-6)


def test_a_gradient_replaces_what_was_there_if_nothing_is_kept():
    network = small("lenet")
    weights = drawn_weights(network)[None]
    inputs, labels = drawn_images(network, 4)[None], labels_for(network, 1, 4)
    gradient = torch.full_like(weights, torch.nan)
    network.gradient(weights, gradient, 4)(inputs, labels, scale=1, keep=0)
    assert gradient.isfinite().all()


def test_initial_weights_have_pytorchs_bounds():
    network = conv_network("lenet")
    weights = network.initial_weights(generator(0))
    for slot in network.slots:
        fan_in = {"conv1": 25, "conv2": 150, "fc1": 256, "fc2": 120, "fc3": 84}
        bound = fan_in[slot.name.split(".")[0]] ** -0.5
        assert slot.bound == pytest.approx(bound)
        assert slot.of(weights).abs().max() <= bound


def test_recomputed_statistics_are_those_of_the_images():
    """Of the first normalisation they are the means and variances of the stem's outputs."""
    network = small("resnet18")
    weights, images = drawn_weights(network), drawn_images(network, 250)
    updated = recompute_statistics(network, weights, images)
    tensors, before = network.tensors(updated), network.tensors(weights)
    stem = F.conv2d(images, tensors["conv1.weight"], padding=1)
    torch.testing.assert_close(tensors["bn1.running_mean"], stem.mean((0, 2, 3)))
    torch.testing.assert_close(
        tensors["bn1.running_var"], stem.transpose(0, 1).flatten(1).var(1), rtol=1e-3, atol=0
    )
    for slot in network.slots:
        assert (slot.role == "buffer") != torch.equal(tensors[slot.name], before[slot.name])


REFUSED = {
    "unknown": (("vgg",), "There is no network 'vgg'; choose from mlp, optunet, lenet"),
    "colour": (("optunet", (3, 32, 32)), "optunet cannot take.*grey images"),
    "flat": (("lenet", (784,)), r"lenet cannot take inputs of shape \[784\]"),
    "small": (("lenet", (1, 12, 12)), "at least 16 × 16 pixels"),
    "width 0": (("lenet", (1, 28, 28), 10, 0), "width of at least 1"),
    "one width": (("optunet", (1, 28, 28), 10, 2), "one width only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    arguments, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence):
        conv_network(*arguments)
