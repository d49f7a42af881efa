"""OptuNet in C beside PyTorch: logits, gradients of stacks and of data sets."""

import shutil

from tests.networks.conv_networks import drawn_images, drawn_weights, small
from utils.networks import native, optunet_kernel
from utils.networks.autograd import AutogradGradient, AutogradPasses
from utils.networks.optunet import OptuNet

import pytest
import torch
import torch.nn.functional as F

NETWORK = small("optunet")
ROWS = torch.tensor([5, 3, 69, 3, 20])
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture
def images():
    """Some, with a margin of equal pixels: there all places of a pooling window are equal."""
    images = drawn_images(NETWORK, 70, dtype=torch.float32)
    images[:, :, :9] = -0.4
    return images


@pytest.fixture
def stack():
    return torch.stack([drawn_weights(NETWORK, seed, torch.float32) for seed in range(3)])


def gradient_by(passes, weights, labels, chunks):
    """Return the gradient of the cross-entropy of these chunks, and their logits."""
    gradient, logits = torch.full_like(weights, torch.nan), []
    passes.begin(weights, gradient)
    for rows in chunks:
        logits.append(passes.forward(rows))
        passes.backward(logits[-1].softmax(-1) - F.one_hot(labels[rows], 10))
    passes.finish()
    return gradient, torch.cat(logits)


@pytest.mark.parametrize("chunks", [[slice(0, 30), slice(30, 60), slice(60, 70)], [ROWS]])
def test_passes_are_those_of_autograd(images, stack, chunks):
    labels = torch.arange(70) % 10
    expected = gradient_by(
        AutogradPasses(NETWORK, images.double()), stack[0].double(), labels, chunks
    )
    passes = NETWORK.data_passes(images)
    assert isinstance(passes, optunet_kernel.OptuNetPasses)
    for _ in range(2):  # buffers are used again
        found = gradient_by(passes, stack[0], labels, chunks)
        for each, exact in zip(found, expected, strict=True):
            torch.testing.assert_close(each.double(), exact, rtol=1e-5, atol=1e-5)


def test_errors_of_active_rows_are_those_of_all_rows_with_zeros(images, stack):
    active, errors = torch.tensor([2, 40, 7]), images[:3, 0, -1, :10].clone()
    full = torch.zeros(70, 10).index_copy_(0, active, errors)
    gradients = torch.empty(2, NETWORK.num_weights)
    passes = NETWORK.data_passes(images)
    for gradient, arguments in zip(gradients, [(errors, active), (full,)], strict=True):
        passes.begin(stack[0], gradient)
        passes.forward(slice(0, 70))
        passes.backward(*arguments)
        passes.finish()
    assert torch.equal(*gradients)
    assert gradients[0].norm() > 1


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 20, 19), (1, 18, 18)])
@pytest.mark.parametrize("count", [1, 16, 37])
def test_gradients_of_stacks_are_those_of_autograd(shape, count):
    network = OptuNet(shape, num_classes=7)
    weights = torch.stack([drawn_weights(network, seed, torch.float32) for seed in range(3)])
    inputs = torch.stack([drawn_images(network, count, seed, torch.float32) for seed in range(3)])
    labels = torch.arange(3 * count).view(3, count) % 7
    start, results = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)), []
    for exact in (False, True):
        convert = torch.Tensor.double if exact else torch.Tensor.float
        gradient = convert(start.clone())
        maker = AutogradGradient if exact else type(network).gradient
        arguments = (network, convert(weights), gradient) + (() if exact else (count,))
        nll = maker(*arguments)(convert(inputs), labels, scale=0.5, keep=0.9)
        results.append((nll.double(), gradient.double()))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_member_has_the_same_bits_alone_as_in_a_stack(images, stack):
    inputs = images[:48].view(3, 16, 1, 20, 19)
    labels, gradients = torch.arange(48).view(3, 16) % 10, torch.zeros(2, *stack.shape)
    NETWORK.gradient(stack, gradients[0], 16)(inputs, labels, scale=1, keep=0)
    for k in range(3):
        alone = slice(k, k + 1)
        step = NETWORK.gradient(stack[alone], gradients[1, alone], 16)
        step(inputs[alone], labels[alone], scale=1, keep=0)
    assert torch.equal(*gradients)


def test_logits_are_those_of_double_precision(images, stack):
    exact = NETWORK.outputs(stack.double(), images.double())
    torch.testing.assert_close(NETWORK.outputs(stack, images).double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(NETWORK.outputs(stack[1], images), NETWORK.outputs(stack, images)[1])
    assert NETWORK.outputs(stack[1].clone().requires_grad_(), images).requires_grad


def test_without_a_compiler_pytorch_computes_and_says_so(images, stack, monkeypatch, capsys):
    expected = NETWORK.outputs(stack[0], images)
    native.library.cache_clear()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    torch.testing.assert_close(NETWORK.outputs(stack[0], images), expected)
    assert isinstance(NETWORK.data_passes(images), AutogradPasses)
    assert "no C compiler" in capsys.readouterr().err
    native.library.cache_clear()


def test_what_a_compiler_refuses_is_shown(monkeypatch, tmp_path):
    native.library.cache_clear()
    monkeypatch.setattr(native, "BUILD", tmp_path / "build")
    with pytest.raises(RuntimeError, match=r"cannot compile optunet\.c"):
        native.library("optunet", HEIGHT=28)  # nor WIDTH
