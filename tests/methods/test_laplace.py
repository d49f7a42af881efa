"""Laplace beside laplace-torch's numbers, autograd's Hessian, NumPy's inverse and quadrature."""

import json
import math
from types import SimpleNamespace

from tests.networks.conv_networks import drawn_images, drawn_weights, small
from utils.data.datasets import Dataset
from utils.evaluation.linearised import linearised_predictions, logit_moments
from utils.methods.curvature import full_ggn, hessian, kronecker_ggn, trained_places
from utils.methods.laplace import Laplace, LaplaceConfig, check_dense_size, fit
from utils.methods.method import Problem
from utils.networks.jacobians import jacobians_of_copies
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.networks.registry import conv_network
from utils.posteriors.files import open_posterior
from utils.posteriors.prior import Prior, by_layer
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch
import torch.nn.functional as F

CPU = torch.device("cpu")
STRUCTURES = ("diagonal", "kron", "full", "last_layer_kron", "last_layer_full")


def problem(network, weights, images, labels, prior=None, temperature=1.0) -> Problem:
    data = Dataset("toy", images, labels, images, labels, network.num_classes)
    return Problem(network, data, prior or Prior(2**-0.5), CPU, temperature=temperature)


def settings(structure: str, **given) -> SimpleNamespace:
    usual = {"curvature": "ggn", "indefinite": "clip", "tune_prior": False}
    return SimpleNamespace(structure=structure, **usual | given)


# ---- laplace-torch
#
# laplace-torch 0.3 with torch 2.13 and curvlinops 3.0.1, in float64: the network 4-3-3 below as
# torch.nn modules, Laplace(model, "classification", subset_of_weights, hessian_structure,
# prior_precision=2.0), fit on one batch of all images, log_marginal_likelihood(),
# _glm_predictive_distribution(x[:2]), la(x[:2], link_approx="probit"), then
# optimize_prior_precision(method="marglik", n_steps=2000, lr=0.02). It keeps the biases' factors
# apart, so for kron the modules had no biases and inputs with a column of ones.

ORACLE = MLP((4, 3, 3))
ORACLE_NUMBERS = {
    "diagonal": {
        "evidence": -45.314201000615, "tuned": (0.9094555136181705, -41.91285145612261),
        "variance": (7.378129512843474, 5.464791978722319, 4.079033975586764),
        "probit": (0.05414025866360884, 0.34798624752490925, 0.5978734938114818),
    },
    "kron": {
        "evidence": -45.264713046493, "tuned": (0.6902206118514552, -40.47916953615828),
        "variance": (5.214918642911867, 6.617905159314958, 5.097429560945854),
        "probit": (0.05819584213112876, 0.3560248003711718, 0.5857793574976994),
    },
    "full": {
        "evidence": -42.889760658010, "tuned": (0.4631060604988608, -36.002261812912735),
        "variance": (7.723086307470988, 5.624139937890257, 5.399529829617959),
        "probit": (0.060640647462578606, 0.3817278742527782, 0.5576314782846432),
    },
    "last_layer_kron": {
        "evidence": -35.318690843316, "tuned": (0.7968148273044906, -33.65170957180828),
        "variance": (3.5165643991966817, 3.3148471971313875, 3.0303735331269497),
        "probit": (0.04023152212877971, 0.3687773605895749, 0.5909911172816454),
    },
    "last_layer_full": {
        "evidence": -34.036189007091, "tuned": (0.7179413656280722, -32.04182855111938),
        "variance": (5.422238479302308, 3.56962047035344, 3.510251794163444),
        "probit": (0.04551026202012736, 0.3787769620261511, 0.5757127759537217),
    },
}  # fmt: skip


def sines(*shape: int, phase: float) -> torch.Tensor:
    numbers = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return torch.sin(1.7 * numbers + phase).view(shape)


def oracle() -> tuple[Problem, torch.Tensor]:
    parts = sines(3, 4, phase=1), sines(3, phase=2), sines(3, 3, phase=3), sines(3, phase=4)
    weights = torch.cat([part.flatten() for part in parts])
    images, labels = 2 * sines(12, 4, phase=0.3), torch.arange(12) % 3
    return problem(ORACLE, weights, images, labels), weights


@pytest.mark.parametrize("structure", STRUCTURES)
def test_numbers_are_those_of_laplace_torch(structure):
    task, weights = oracle()
    numbers, images = ORACLE_NUMBERS[structure], task.data.train_images[:2]
    posterior, facts = fit(task, weights, settings(structure))
    assert facts["log_marginal_likelihood"] == pytest.approx(numbers["evidence"], rel=1e-10)
    covariance = logit_moments(posterior, images)[1][0]
    np.testing.assert_allclose(covariance.diagonal(), numbers["variance"], rtol=1e-8)
    predicted = linearised_predictions(posterior, images, 1, generator(0))["probit"][0]
    np.testing.assert_allclose(predicted, numbers["probit"], rtol=1e-8)
    _, tuned = fit(task, weights, settings(structure, tune_prior=True))
    precision, evidence = numbers["tuned"]
    assert tuned["log_marginal_likelihood"] == pytest.approx(evidence, rel=1e-8)
    assert 2 * tuned["prior_scale"] ** -2 == pytest.approx(precision, rel=1e-4)


# ---- matrices


HESSIANS = {
    "relu": MLP((6, 5, 4, 3)),
    "more units than classes": MLP((4, 7, 2)),
    "silu": MLP((6, 5, 4, 3), "silu"),
    "tanh": MLP((3, 5, 3), "tanh"),
    "no hidden units": MLP((6, 3)),
    "optunet": conv_network("optunet", (1, 18, 18), num_classes=4),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_the_hessian_and_ggn_are_autograds(name):
    network = HESSIANS[name]
    weights, images = drawn_weights(network), drawn_images(network, 5)
    labels = torch.arange(5) % network.num_classes

    def loss(weights):
        return F.cross_entropy(network.outputs(weights, images), labels, reduction="sum")

    expected = torch.autograd.functional.hessian(loss, weights)
    torch.testing.assert_close(hessian(network, weights, images, labels), expected)
    slopes, logits = jacobians_of_copies(network, weights, images)
    p = logits.softmax(-1)
    middle = p.diag_embed() - p[:, :, None] * p[:, None]
    expected = torch.einsum("nci,ncd,ndj->ij", slopes, middle, slopes)
    torch.testing.assert_close(full_ggn(network, weights, images), expected)


@pytest.mark.parametrize("name", ["relu", "optunet"])
def test_kronecker_factors_of_one_image_are_exact(name):
    """Where a layer has one position: of several, cross terms are left out."""
    network = HESSIANS[name]
    weights, images = drawn_weights(network), drawn_images(network, 1)
    matrix = full_ggn(network, weights, images)
    blocks = kronecker_ggn(network, weights, images)
    assert sorted(torch.cat([b.places.flatten() for b in blocks]).tolist()) == list(
        range(network.num_weights)
    )
    assert len(blocks) == {"relu": 3, "optunet": 4}[name]  # two groups of convolutions
    for block in blocks if name == "relu" else blocks[-1:]:
        vectors = torch.kron(block.left, block.right)
        ours = vectors * block.eigenvalues.flatten() @ vectors.T
        places = block.places.flatten()
        torch.testing.assert_close(ours, matrix[places][:, places])


def test_kronecker_factors_of_a_convolution_are_sums_over_positions():
    """Σ g gᵀ ⊗ Σ x xᵀ / (N T) by plain unfolding, and autograd at the convolution's outputs."""
    network = conv_network("optunet", (1, 24, 21), num_classes=4)  # 3 × 2 positions
    weights, images = drawn_weights(network), drawn_images(network, 3)
    tensors = network.tensors(weights)
    maps = F.conv2d(images, tensors["conv1.weight"].flatten(1, 2))
    maps = F.max_pool2d(maps, 3).relu()
    values = F.conv2d(maps, tensors["conv2.weight"].flatten(0, 1), groups=2).requires_grad_()
    means = values.relu().mean((-1, -2))
    logits = F.linear(means, tensors["fc.weight"].flatten(1), tensors["fc.bias"])
    p = logits.detach().softmax(-1)
    eigenvalues, vectors = torch.linalg.eigh(p.diag_embed() - p[:, :, None] * p[:, None])
    root = vectors * eigenvalues.clamp(min=0).sqrt()[:, None]
    left = 0
    for column in root.unbind(-1):
        (errors,) = torch.autograd.grad(logits, values, column, retain_graph=True)
        errors = errors.transpose(0, 1).flatten(1)[5:]  # of the second group
        left = left + errors @ errors.T
    patches = F.unfold(maps[:, 1:], 5).transpose(0, 1).flatten(1)
    right = patches @ patches.T / patches.shape[1]
    block = kronecker_ggn(network, weights, images)[2]
    vectors = torch.kron(block.left, block.right)
    ours = vectors * block.eigenvalues.flatten() @ vectors.T
    torch.testing.assert_close(ours, torch.kron(left, right))


# ---- the posterior


def covariance_of(posterior) -> torch.Tensor:
    """Return the covariance [d, d], by way of the identity as Jacobian."""
    size = len(posterior.mean)
    return posterior.output_covariance(torch.eye(size, dtype=torch.float64)[None])[0]


def test_priors_by_layer_and_temperature():
    """T (H + S⁻²)⁻¹ in plain NumPy, and a diagonal at twice the temperature."""
    task, weights = oracle()
    std = by_layer(ORACLE, [0.5, 2.0]).double()
    task = task._replace(prior=Prior(std), temperature=3.0)
    matrix = full_ggn(ORACLE, weights, task.data.train_images).numpy()
    posterior, _ = fit(task, weights, settings("full"))
    expected = 3 * np.linalg.inv(matrix + np.diag(std.numpy() ** -2.0))
    np.testing.assert_allclose(covariance_of(posterior), expected, rtol=1e-8, atol=1e-12)
    posterior, _ = fit(task, weights, settings("diagonal"))
    variance = 3 / (matrix.diagonal() + std.numpy() ** -2.0)
    np.testing.assert_allclose(posterior.std, variance**0.5, rtol=1e-10)
    posterior, _ = fit(task, weights, settings("last_layer_full"))
    last = np.arange(15, 27)
    expected = 3 * np.linalg.inv(matrix[15:, 15:] + np.eye(12) / 4)
    np.testing.assert_allclose(covariance_of(posterior)[15:, 15:], expected, rtol=1e-8, atol=1e-12)
    assert covariance_of(posterior)[:15].abs().max() == 0
    assert len(last) + 15 == ORACLE.num_weights


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.0])
def test_logistic_regression_by_quadrature(temperature):
    """Two classes, 400 points: Laplace's moments and evidence are near the exact ones.

    Only the differences u = w₁ − w₀ and b = b₁ − b₀ meet the data; their prior is N(0, 2 T), and
    their likelihood is that of the labels to the power of 1/T.
    """
    network, random = MLP((1, 2)), generator(0)
    images = torch.randn(400, 1, generator=random, dtype=torch.float64)
    chances = torch.sigmoid(images[:, 0] + 0.5)
    labels = (torch.rand(400, generator=random) < chances).long()
    weights = torch.zeros(4, dtype=torch.float64)
    for _ in range(20):  # Newton's method
        leaf = weights.clone().requires_grad_()
        loss = F.cross_entropy(network.outputs(leaf, images), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss + leaf.square().sum() / 2, leaf)
        matrix = hessian(network, weights, images, labels) + torch.eye(4)
        weights = weights - torch.linalg.solve(matrix, gradient)
    task = problem(network, weights, images, labels, Prior(1.0), temperature)
    posterior, facts = fit(task, weights, settings("full", curvature="hessian"))
    u, b = torch.meshgrid(*[torch.linspace(-1, 3, 161, dtype=torch.float64)] * 2, indexing="ij")
    logits = u[..., None] * images[:, 0] + b[..., None]
    log_density = F.logsigmoid(logits * (2 * labels - 1)).sum(-1) - (u**2 + b**2) / 4
    log_density = log_density / temperature
    total = log_density.flatten().logsumexp(0).item()
    evidence = total + math.log(0.025**2 / (4 * torch.pi * temperature))
    density = (log_density - total).exp()
    assert facts["log_marginal_likelihood"] == pytest.approx(evidence, abs=0.02)
    mean = (density * u).sum() / density.sum()
    variance = (density * (u - mean) ** 2).sum() / density.sum()
    covariance = covariance_of(posterior)
    ours = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert (posterior.mean[1] - posterior.mean[0]).item() == pytest.approx(mean.item(), abs=0.02)
    assert ours.item() == pytest.approx(variance.item(), rel=0.05)


def test_negative_curvature_counts_as_none_or_is_refused():
    network = HESSIANS["silu"]
    weights, images = 3 * drawn_weights(network), drawn_images(network, 8)
    labels = torch.arange(8) % 3
    task = problem(network, weights, images, labels)
    matrix = hessian(network, weights, images, labels) / 2 + torch.eye(network.num_weights)
    values, vectors = torch.linalg.eigh(matrix)
    assert values.min() < 0
    posterior, facts = fit(task, weights, settings("full", curvature="hessian"))
    expected = vectors / values.clamp(min=1) @ vectors.T / 2
    torch.testing.assert_close(covariance_of(posterior), expected)
    assert facts["num_negative"] == (values < 1).sum()
    with pytest.raises(UserError, match="not positive at this mode"):
        fit(task, weights, settings("full", curvature="hessian", indefinite="refuse"))
    # with a narrow prior the precision is positive, and negative curvature is taken as it is
    narrow = task._replace(prior=Prior(0.01))
    refused = settings("full", curvature="hessian", indefinite="refuse")
    exact = torch.linalg.inv(2 * (matrix - torch.eye(len(matrix))) + 1e4 * torch.eye(len(matrix)))
    torch.testing.assert_close(covariance_of(fit(narrow, weights, refused)[0]), exact)


@pytest.mark.parametrize("structure", ["diagonal", "last_layer_kron", "last_layer_full"])
def test_running_statistics_do_not_vary(structure):
    network = small("resnet18")
    weights, images = drawn_weights(network, dtype=torch.float32), drawn_images(network, 3)
    std = by_layer(network, 0.5)
    task = problem(network, weights, images.float(), torch.arange(3), Prior(std))
    posterior, _ = fit(task, weights, settings(structure))
    (draw,) = posterior.draw(1, generator(0))
    moved = (draw != weights).nonzero().flatten().tolist()
    trained = trained_places(network).tolist()
    assert moved
    assert set(moved) <= set(trained)
    if structure == "diagonal":
        assert len(moved) == len(trained)


# ---- as users call it


TOY = (
    "--method", "laplace", "--config_name", "quick", "--hidden_sizes", "8", "--num_train", "200",
    "--num_epochs", "2", "--num_draws", "3", "--structure", "last_layer_kron",
)  # fmt: skip


def test_modes_are_independent_of_how_many_there_are(script, tmp_path):
    for count in (1, 2):
        done = script("train", *TOY, "--num_modes", count, "--run_name", count, "--tune_prior")
        assert done.returncode == 0, done.stderr
    runs = tmp_path / "default"
    alone = open_posterior(runs / "Laplace-MNIST-quick-1")
    first, second = open_posterior(runs / "Laplace-MNIST-quick-2").components
    assert torch.equal(alone.mean, first.mean)
    for ours, theirs in zip(alone.blocks, first.blocks, strict=True):
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    assert not torch.equal(first.mean, second.mean)
    summary = json.loads((runs / "Laplace-MNIST-quick-2" / "summary.json").read_text())
    assert len(summary["log_marginal_likelihood"]) == len(summary["prior_scale"]) == 2
    assert 0 < summary["probit_test_accuracy"] <= 1
    assert "posterior of another prior" in done.stdout
    assert "linearised, draws" in done.stdout


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(UserError, match="give --structure full"):
        LaplaceConfig(structure="kron", curvature="hessian")
    with pytest.raises(UserError, match="407,050 weights squared"):
        check_dense_size(MLP((784, 512, 10)), "full")
    network = small("resnet8_frn")
    with pytest.raises(UserError, match="give --structure last_layer_kron"):
        kronecker_ggn(network, drawn_weights(network), drawn_images(network, 2))


def test_kronecker_factors_are_refused_before_training():
    network = small("resnet8_frn")
    images = drawn_images(network, 2).float()
    config = LaplaceConfig(structure="kron")
    with pytest.raises(UserError, match="give --structure last_layer_kron"):
        Laplace().init(problem(network, None, images, torch.zeros(2).long()), config, [0])


def test_a_network_that_records_nothing_has_no_layers():
    class Plain(Network):
        slots = ORACLE.slots
        groups = ORACLE.groups
        input_shape, num_classes = (4,), 3

        def trace(self, weights, images):
            return {}, images[..., :3] * weights[..., None, :3]

    with pytest.raises(UserError, match="does not record its linear layers"):
        kronecker_ggn(Plain(), *oracle()[1:], oracle()[0].data.train_images)
