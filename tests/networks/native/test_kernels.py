"""Networks in C beside PyTorch: logits, gradients of stacks and of data sets."""

import shutil

from tests.networks.conv_networks import drawn_images, drawn_weights
from utils.networks.autograd import AutogradGradient, AutogradPasses
from utils.networks.lenet import LeNet
from utils.networks.native import compilation
from utils.networks.native.kernels import KernelPasses
from utils.networks.optunet import OptuNet

import pytest
import torch
import torch.nn.functional as F

CLASSES = 7
# Sizes that leave a rest when they are divided by those of blocks, windows and vectors.
NETWORKS = {
    "optunet": OptuNet((1, 28, 28), CLASSES),
    "optunet, high": OptuNet((1, 20, 19), CLASSES),
    "optunet, smallest": OptuNet((1, 18, 18), CLASSES),
    "lenet": LeNet((1, 28, 28), CLASSES),
    "lenet, smallest": LeNet((2, 16, 16), CLASSES, width=3),
    "lenet, thin": LeNet((1, 19, 22), CLASSES, width=1),
    "lenet, wide": LeNet((4, 25, 40), CLASSES, width=7),
    "lenet, colour": LeNet((3, 32, 32), CLASSES),
}
ROWS = torch.tensor([5, 3, 69, 3, 20])
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]


@pytest.fixture(params=["optunet, high", "lenet, smallest"])
def small_network(request):
    return NETWORKS[request.param]


def images_for(network):
    """Draw some with a margin of equal pixels: there all places of a pooling window are equal."""
    images = drawn_images(network, 70, dtype=torch.float32)
    images[:, :, :9] = -0.4
    return images


def stack_of(network):
    return torch.stack([drawn_weights(network, seed, torch.float32) for seed in range(3)])


def gradient_by(passes, weights, labels, chunks):
    """Return the gradient of the cross-entropy of these chunks, and their logits."""
    gradient, logits = torch.full_like(weights, torch.nan), []
    passes.begin(weights, gradient)
    for rows in chunks:
        logits.append(passes.forward(rows))
        passes.backward(logits[-1].softmax(-1) - F.one_hot(labels[rows], CLASSES))
    passes.finish()
    return gradient, torch.cat(logits)


@pytest.mark.parametrize("chunks", [[slice(0, 30), slice(30, 60), slice(60, 70)], [ROWS]])
def test_passes_are_those_of_autograd(network, chunks):
    images, weights, labels = images_for(network), stack_of(network)[0], torch.arange(70) % CLASSES
    expected = gradient_by(
        AutogradPasses(network, images.double()), weights.double(), labels, chunks
    )
    passes = network.data_passes(images)
    assert isinstance(passes, KernelPasses)
    for _ in range(2):  # buffers are used again
        found = gradient_by(passes, weights, labels, chunks)
        for each, exact in zip(found, expected, strict=True):
            torch.testing.assert_close(each.double(), exact, rtol=1e-5, atol=1e-5)


def test_errors_of_active_rows_are_those_of_all_rows_with_zeros(small_network):
    images, weights = images_for(small_network), stack_of(small_network)[0]
    active, errors = torch.tensor([2, 40, 7]), images[:3, 0, -1, :CLASSES].clone()
    full = torch.zeros(70, CLASSES).index_copy_(0, active, errors)
    gradients = torch.empty(2, small_network.num_weights)
    passes = small_network.data_passes(images)
    for gradient, arguments in zip(gradients, [(errors, active), (full,)], strict=True):
        passes.begin(weights, gradient)
        passes.forward(slice(0, 70))
        passes.backward(*arguments)
        passes.finish()
    assert torch.equal(*gradients)
    assert gradients[0].norm() > 1


def assert_gradients_of_autograd(network, weights, count):
    """Compare the gradients of a stack, each on its own images, with double precision."""
    size = len(weights)
    inputs = torch.stack([drawn_images(network, count, k, torch.float32) for k in range(size)])
    labels = torch.arange(size * count).view(size, count) % CLASSES
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


@pytest.mark.parametrize("count", [1, 16, 37])
def test_gradients_of_stacks_are_those_of_autograd(network, count):
    assert_gradients_of_autograd(network, stack_of(network), count)


def test_the_first_of_equal_values_in_a_window_has_the_gradient():
    """A channel without weights has equal values everywhere."""
    network = NETWORKS["lenet, smallest"]
    weights = stack_of(network)
    named = network.tensors(weights)
    named["conv1.weight"][:, 0] = named["conv2.weight"][:, 1] = 0
    named["conv1.bias"][:, 0] = named["conv2.bias"][:, 1] = 0.3
    assert_gradients_of_autograd(network, weights, 16)


def test_a_member_has_the_same_bits_alone_as_in_a_stack(small_network):
    stack = stack_of(small_network)
    inputs = images_for(small_network)[:48].unflatten(0, (3, 16))
    labels, gradients = torch.arange(48).view(3, 16) % CLASSES, torch.zeros(2, *stack.shape)
    small_network.gradient(stack, gradients[0], 16)(inputs, labels, scale=1, keep=0)
    for k in range(3):
        alone = slice(k, k + 1)
        step = small_network.gradient(stack[alone], gradients[1, alone], 16)
        step(inputs[alone], labels[alone], scale=1, keep=0)
    assert torch.equal(*gradients)


def test_logits_are_those_of_double_precision(network):
    images, stack = images_for(network), stack_of(network)
    exact, found = network.outputs(stack.double(), images.double()), network.outputs(stack, images)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(network.outputs(stack[1], images), found[1])
    assert network.outputs(stack[1].clone().requires_grad_(), images).requires_grad


def test_images_of_another_shape_are_refused(small_network):
    images, stack = images_for(small_network), stack_of(small_network)
    for wrong in (images[:, :, :-1], images.expand(2, *images.shape)):
        with pytest.raises(ValueError, match="are needed"):
            small_network.outputs(stack, wrong)


def test_what_is_no_number_stays_so(small_network):
    images, weights = images_for(small_network), stack_of(small_network)[0]
    for slot in small_network.slots:
        damaged = weights.clone()
        slot.of(damaged).view(-1)[0] = torch.nan
        expected = small_network.outputs(damaged.double(), images.double()).isnan()
        assert expected.any()
        assert torch.equal(small_network.outputs(damaged, images).isnan(), expected)


def test_without_a_compiler_pytorch_computes_and_says_so(small_network, monkeypatch, capsys):
    images, weights = images_for(small_network), stack_of(small_network)[0]
    expected = small_network.outputs(weights, images)
    compilation.library.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler -v")
    torch.testing.assert_close(small_network.outputs(weights, images), expected)
    assert isinstance(small_network.data_passes(images), AutogradPasses)
    assert "directory: 'no-such-compiler'" in capsys.readouterr().err
    compilation.library.cache_clear()


@pytest.mark.parametrize("name", ["optunet", "lenet"])
def test_what_a_compiler_refuses_is_shown(name, monkeypatch, tmp_path, capsys):
    compilation.library.cache_clear()
    monkeypatch.setattr(compilation, "BUILD", tmp_path / "build")
    assert compilation.library(name, HEIGHT=28) is None  # nor WIDTH
    assert f"{name}.c cannot be compiled" in capsys.readouterr().err
    compilation.library.cache_clear()


def test_a_library_is_compiled_anew_after_a_change_of_a_header(monkeypatch, tmp_path):
    source, header = tmp_path / "one.c", tmp_path / "one.h"
    source.write_text('#include "one.h"\nint one(void) { return ONE; }')
    monkeypatch.setattr(compilation, "__file__", str(tmp_path / "compilation.py"))
    monkeypatch.setattr(compilation, "BUILD", tmp_path / "build")
    for value in (1, 2):
        compilation.library.cache_clear()
        header.write_text(f"#define ONE {value}")
        assert compilation.library("one").one() == value


def test_a_damaged_library_is_compiled_anew(monkeypatch, tmp_path):
    (tmp_path / "one.c").write_text("int one(void) { return 1; }")
    monkeypatch.setattr(compilation, "__file__", str(tmp_path / "compilation.py"))
    monkeypatch.setattr(compilation, "BUILD", tmp_path / "build")
    compilation.library.cache_clear()
    compilation.library("one")
    (path,) = compilation.BUILD.glob("*.so")
    content = path.read_bytes()
    path.unlink()  # the loaded one stays in memory
    path.write_bytes(content[: len(content) // 2])
    compilation.library.cache_clear()
    assert compilation.library("one").one() == 1
    assert path.read_bytes() == content


def test_an_unclosed_quote_in_the_compilers_name_is_no_traceback(monkeypatch, capsys):
    compilation.library.cache_clear()
    monkeypatch.setenv("CC", "'cc")
    assert compilation.library("optunet", CHANNELS=1) is None
    assert "optunet.c cannot be compiled: No closing" in capsys.readouterr().err
    compilation.library.cache_clear()
