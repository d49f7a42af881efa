"""examples/own_networks.py as a user runs it, on networks made with torch.nn alone."""

import copy
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY, TOY_EVALUATION
from tests.networks.test_state_dicts import sequential
from utils.networks.mlp import MLP

import numpy as np
import pytest
import torch
from torch import nn

SCRIPT = REPOSITORY / "examples" / "own_networks.py"
PAGE = (REPOSITORY / "docs" / "own_networks.md").read_text()


@pytest.fixture
def own(tmp_path, monkeypatch, run_here):
    """Run the example in an empty directory, as `python examples/own_networks.py` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    return lambda *words: run_here([SCRIPT, *words])


class Named(nn.Module):
    """Layers under names of the user's own, with Tanh between them."""

    def __init__(self):
        super().__init__()
        self.body = sequential(6, 9, 8, activation=nn.Tanh)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.body(inputs)))


def linear_layers(net) -> list[nn.Linear]:
    return [module for module in net.modules() if isinstance(module, nn.Linear)]


def permuted(net, orders) -> nn.Module:
    """A copy of the network whose hidden units stand in other orders, moved with torch alone."""
    moved = copy.deepcopy(net)
    layers = linear_layers(moved)
    for order, layer, following in zip(orders, layers[:-1], layers[1:], strict=True):
        layer.weight.data, layer.bias.data = layer.weight.data[order], layer.bias.data[order]
        following.weight.data = following.weight.data[:, order]
    return moved


def shift(size: int) -> torch.Tensor:
    """One cycle through all units, so NoT is size − 1."""
    return torch.arange(size).roll(1)


def swap(size: int) -> torch.Tensor:
    """The first two units swapped: NoT is 1."""
    return torch.tensor([1, 0, *range(2, size)])


def flat(net) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in net.parameters()])


def write_inputs(net, count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """x.npy and y.npy: the network's own classes, but for every fifth label."""
    inputs = torch.randn(count, linear_layers(net)[0].in_features)
    labels = net(inputs).argmax(-1)
    labels[::5] = (labels[::5] + 1) % linear_layers(net)[-1].out_features
    np.save("x.npy", inputs.numpy())
    np.save("y.npy", labels.numpy())
    return inputs, labels


def accuracy_of(net, inputs, labels) -> float:
    return (net(inputs).argmax(-1) == labels).double().mean().item()


def read(path) -> dict:
    return json.loads(path.read_text())


def columns(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


CASES = {
    "one hidden layer": (lambda: sequential(6, 9, 3), "relu"),
    "two hidden layers, own names": (Named, "tanh"),
}


@pytest.mark.parametrize("by", ["activation", "weight"])
@pytest.mark.parametrize("case", CASES)
def test_permuted_copies_of_one_network_are_one(case, by, own, tmp_path):
    """σ is 0, μ_r is the network, and NoT is that of the permutations that were planted."""
    make, activation = CASES[case]
    torch.manual_seed(0)
    net = make()
    sizes = [layer.out_features for layer in linear_layers(net)[:-1]]
    nets = [net, permuted(net, map(shift, sizes)), permuted(net, map(swap, sizes))]
    for name, network in zip("abc", nets, strict=True):
        torch.save(network.state_dict(), f"{name}.pt")
    inputs, labels = write_inputs(net)
    given = ("--inputs", "x.npy", "--labels", "y.npy") if by == "activation" else ()
    ended = own(
        "--networks", "a.pt", "b.pt", "c.pt", *given, "--activation", activation, "--kept", 30,
        "--prune_by", "abs_mean",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "flattened" not in ended.stdout
    assert f"rebasing by {by}" in ended.stderr
    compact, out = np.load(tmp_path / "own" / "compact.npz"), tmp_path / "own"
    assert not compact["std"].any()
    assert torch.equal(torch.from_numpy(compact["mean"]), flat(net))
    assert compact["permutations"].shape == (3, sum(sizes))
    summary = read(out / "summary.json")
    assert summary["transpositions"] == [[0] * len(sizes), [s - 1 for s in sizes], [1] * len(sizes)]
    read_as = "-".join(map(str, (6, *sizes, 3)))
    assert f"3 networks, read as {read_as}, {activation} after each hidden layer" in ended.stdout
    table = {row[0]: row[1 : 1 + len(sizes)] for row in columns(ended.stdout)}
    assert table["network"] == [f"NoT, hidden layer {n + 1}" for n in range(len(sizes))]
    assert table["b.pt"] == [str(size - 1) for size in sizes]
    assert table["mean"] == [f"{size / 2:.1f}" for size in sizes]  # of the other two
    random = [size - sum(1 / k for k in range(1, size + 1)) for size in sizes]
    assert table["random permutations"] == [f"{expected:.1f}" for expected in random]
    samples = torch.from_numpy(np.load(out / "samples.npy"))
    assert torch.equal(samples, torch.stack([flat(network) for network in nets]))
    sizes_there = [linear_layers(net)[0].in_features, *sizes, 3]
    assert read(out / "network.json") == {"sizes": sizes_there, "activation": activation}

    for file in ("rebased/a.pt", "rebased/b.pt", "rebased/c.pt", "mean.pt"):
        state_dict = torch.load(out / file, weights_only=True)
        assert list(state_dict) == list(net.state_dict())
        assert all(torch.equal(state_dict[key], net.state_dict()[key]) for key in state_dict)

    pruned = make()
    pruned.load_state_dict(torch.load(out / "pruned.pt", weights_only=True))
    kept = round(0.3 * len(flat(net)))
    assert int((flat(pruned) != 0).sum()) == kept
    assert f"{100 * (1 - kept / len(flat(net))):.2f} % of the weights are zero" in ended.stdout
    smallest_kept = flat(pruned)[flat(pruned) != 0].abs().min()
    assert (flat(net).abs() > smallest_kept).sum() == kept - 1
    if not given:
        assert "accuracy" not in summary
        assert not (out / "predictions.npy").exists()
        assert "give --test_inputs" not in ended.stdout
        return
    assert "Matched and scored on the same inputs, x.npy" in ended.stdout
    assert max(summary["barriers"]["after"]) < 1e-6 < summary["barriers"]["before"][1]
    predictions = torch.from_numpy(np.load(out / "predictions.npy"))
    torch.testing.assert_close(predictions.float(), net(inputs).softmax(-1))
    scores = summary["accuracy"]
    assert scores["networks"] == [0.8] * 3
    assert scores["average"] == scores["q_r"] == scores["mu_r"] == 0.8
    assert scores["q_d"] < 0.8
    assert scores["pruned"] == accuracy_of(pruned, inputs, labels)


def test_what_the_networks_agree_on_is_kept(own, tmp_path):
    """Where noise was put on 60 % of the weights, these are what pruning to 40 % takes away."""
    torch.manual_seed(0)
    net = sequential(6, 9, 3)
    noisy = torch.rand(len(flat(net))).argsort() < round(0.6 * len(flat(net)))
    for name, orders in (("a", [torch.arange(9)]), ("b", [shift(9)]), ("c", [swap(9)])):
        other = copy.deepcopy(net)
        noise = 1e-3 * noisy * torch.randn(len(noisy))
        nn.utils.vector_to_parameters(flat(net) + noise, other.parameters())
        torch.save(permuted(other, orders).state_dict(), f"{name}.pt")
    inputs, labels = write_inputs(net)
    ended = own(
        "--networks", "a.pt", "b.pt", "c.pt", "--inputs", "x.npy", "--labels", "y.npy",
        "--kept", 40, "--out_dir", "deep/mine", "--prune_by", "std",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    pruned = sequential(6, 9, 3)
    pruned.load_state_dict(torch.load(tmp_path / "deep/mine/pruned.pt", weights_only=True))
    assert torch.equal(flat(pruned) == 0, noisy)
    assert torch.equal(flat(pruned)[~noisy], flat(net)[~noisy])
    scores = read(tmp_path / "deep/mine/summary.json")["accuracy"]
    assert scores["pruned"] == accuracy_of(pruned, inputs, labels)
    assert scores["mu_r"] > 0.75  # as the networks themselves
    curves = read(tmp_path / "deep/mine/summary.json")["pruning"]
    assert curves["std"][curves["kept_percent"].index(40)] == scores["pruned"]
    assert f"costs {100 * (scores['mu_r'] - scores['pruned']):.2f} points" in ended.stdout


@pytest.mark.parametrize("criterion", ["abs_mean", "signal_to_noise", None])
def test_other_orders_of_pruning(criterion, own):
    """By |μ| unless told otherwise: a low σ alone is nothing that training has made certain."""
    torch.manual_seed(0)
    nets = [sequential(6, 9, 3) for _ in range(3)]
    for name, net in zip("abc", nets, strict=True):
        torch.save(net.state_dict(), f"{name}.pt")
    given = ("--prune_by", criterion) if criterion else ()
    ended = own("--networks", "a.pt", "b.pt", "c.pt", *given, "--kept", 10)
    assert ended.returncode == 0, ended.stderr
    pruned = sequential(6, 9, 3)
    pruned.load_state_dict(torch.load("own/pruned.pt", weights_only=True))
    compact = np.load("own/compact.npz")
    ranked_by = np.abs(compact["mean"]) / (compact["std"] if criterion == "signal_to_noise" else 1)
    assert f"(--prune_by {criterion or 'abs_mean'})" in ended.stdout
    largest = np.argsort(-ranked_by)[: round(0.1 * len(ranked_by))]
    assert set(flat(pruned).nonzero().flatten().tolist()) == set(largest.tolist())


def test_samples_are_pruned_by_their_deviations(own, tmp_path):
    samples = np.random.default_rng(0).normal(size=(5, 6 * 9 + 9 + 9 * 3 + 3))
    np.save("samples.npy", samples)
    (tmp_path / "network.json").write_text('{"sizes": [6, 9, 3], "activation": "relu"}')
    ended = own("--samples", "samples.npy", "--kept", 10)
    assert ended.returncode == 0, ended.stderr
    pruned = sequential(6, 9, 3)
    pruned.load_state_dict(torch.load("own/pruned.pt", weights_only=True))
    least = np.argsort(np.load("own/compact.npz")["std"])[: round(0.1 * samples.shape[1])]
    assert set(flat(pruned).nonzero().flatten().tolist()) == set(least.tolist())


def test_the_best_order_on_the_matching_inputs_is_chosen_and_others_are_scored(own):
    """Two networks that differ most where it matters, so σ keeps what does not."""
    torch.manual_seed(0)
    net = sequential(6, 9, 3)
    other = copy.deepcopy(net)
    nn.utils.vector_to_parameters(1.1 * flat(net), other.parameters())
    for name, network in (("a", net), ("b", other)):
        torch.save(network.state_dict(), f"{name}.pt")
    write_inputs(net)
    x, y = np.load("x.npy"), np.load("y.npy")
    np.save("test_x.npy", x[:50])
    np.save("test_y.npy", y[:50])
    given = (
        "--networks", "a.pt", "b.pt", "--inputs", "x.npy", "--labels", "y.npy", "--kept", 30,
    )  # fmt: skip
    ended = own(*given)
    pruning = read(Path("own/summary.json"))
    at = pruning["pruning"]["kept_percent"].index(30)
    curves = {name: pruning["pruning"][name][at] for name in ("abs_mean", "signal_to_noise", "std")}
    assert curves[pruning["prune_by"]] == max(curves.values()) > curves["std"]
    assert f"(--prune_by {pruning['prune_by']})" in ended.stdout

    ended = own(
        *given, "--test_inputs", "test_x.npy", "--test_labels", "test_y.npy", "--out_dir", "test"
    )
    assert "Matched on x.npy, scored on test_x.npy." in ended.stdout
    summary = read(Path("test/summary.json"))
    assert summary["prune_by"] == pruning["prune_by"]
    mean = sequential(6, 9, 3)
    mean.load_state_dict(torch.load("test/mean.pt", weights_only=True))
    scored = accuracy_of(mean, torch.from_numpy(x[:50]), torch.from_numpy(y[:50]))
    assert summary["accuracy"]["mu_r"] == scored
    assert len(np.load("test/predictions.npy")) == 50
    assert np.array_equal(np.load("test/compact.npz")["mean"], np.load("own/compact.npz")["mean"])


def test_nothing_is_pruned_unless_asked_for(own):
    torch.manual_seed(0)
    (Path("1")).mkdir()
    torch.save(sequential(6, 9, 3).state_dict(), "net.pt")
    torch.save(sequential(6, 9, 3).double().state_dict(), "1/net.pt")
    ended = own("--networks", "net.pt", "1/net.pt")
    assert {path.name for path in Path("own").iterdir()} == {
        "compact.npz", "mean.pt", "rebased", "samples.npy", "summary.json", "network.json",
    }  # fmt: skip
    assert {path.name for path in Path("own/rebased").iterdir()} == {"1-net.pt", "2-net.pt"}
    moved = torch.load("own/rebased/2-net.pt", weights_only=True)
    before = torch.load("1/net.pt", weights_only=True)
    order = np.load("own/compact.npz")["permutations"][1]
    assert torch.equal(moved["0.weight"], before["0.weight"][order])  # in double precision
    assert torch.equal(moved["2.weight"], before["2.weight"][:, order])
    assert "give --activation" in ended.stdout


def test_networks_without_biases(own):
    """They come back without biases, and the share that is kept is one of existing weights."""
    torch.manual_seed(0)
    nets = [sequential(6, 10, 4) for _ in range(2)]
    for name, net in zip("ab", nets, strict=True):
        net[0].bias = net[2].bias = None
        torch.save(net.state_dict(), f"{name}.pt")
    ended = own("--networks", "a.pt", "b.pt", "--kept", 25, "--prune_by", "std")
    assert "layers without biases get zeros" in ended.stdout
    for file in ("mean", "pruned", "rebased/b"):
        state_dict = torch.load(f"own/{file}.pt", weights_only=True)
        assert list(state_dict) == ["0.weight", "2.weight"]
    pruned = torch.load("own/pruned.pt", weights_only=True)
    assert sum(int((tensor != 0).sum()) for tensor in pruned.values()) == 25  # of 60 + 40


def test_networks_of_another_activation_are_not_taken_for_relu(own):
    torch.manual_seed(0)
    net = sequential(6, 30, 20, 3, activation=nn.Tanh)
    nn.utils.vector_to_parameters(3 * flat(net), net.parameters())
    torch.save(net.state_dict(), "a.pt")
    write_inputs(net)
    given = ("--networks", "a.pt", "a.pt", "--inputs", "x.npy", "--labels", "y.npy")
    ended = own(*given)
    assert ended.returncode == 2
    assert "give --activation tanh, or --activation relu" in ended.stderr
    assert own(*given, "--activation", "relu").returncode == 0


def test_barriers_are_those_of_the_losses_in_between(own):
    torch.manual_seed(0)
    nets = [sequential(6, 9, 3) for _ in range(2)]
    for name, net in zip("ab", nets, strict=True):
        nn.utils.vector_to_parameters(5 * flat(net), net.parameters())
        torch.save(net.state_dict(), f"{name}.pt")
    inputs, labels = write_inputs(nets[0])
    own("--networks", "a.pt", "b.pt", "--inputs", "x.npy", "--labels", "y.npy")

    def loss(weights):
        net = sequential(6, 9, 3)
        nn.utils.vector_to_parameters(weights, net.parameters())
        return nn.functional.cross_entropy(net(inputs), labels).item()

    rebased = sequential(6, 9, 3)
    rebased.load_state_dict(torch.load("own/rebased/b.pt", weights_only=True))
    summary = read(Path("own/summary.json"))
    for when, second in (("before", nets[1]), ("after", rebased)):
        first, second = flat(nets[0]), flat(second)
        rises = [
            loss((1 - at) * first + at * second) - (1 - at) * loss(first) - at * loss(second)
            for at in (0, 0.25, 0.5, 0.75, 1)
        ]
        assert summary["barriers"][when] == pytest.approx([0, max(rises)], abs=1e-5)


def test_samples_of_another_sampler(own, tmp_path):
    """[K, d] in any precision; the pruned network fits an nn.Sequential."""
    torch.manual_seed(0)
    net = sequential(6, 9, 8, 3, activation=nn.Tanh)
    copies = [permuted(net, [torch.randperm(9), torch.randperm(8)]) for _ in range(30)]
    (tmp_path / "mine").mkdir()
    np.save("mine/samples.npy", torch.stack([flat(c) for c in copies]).double().numpy())
    (tmp_path / "mine/network.json").write_text('{"sizes": [6, 9, 8, 3], "activation": "tanh"}')
    inputs, _ = write_inputs(net)
    np.save("x.npy", inputs.reshape(-1, 2, 3).double().numpy())  # as pictures
    ended = own("--samples", "mine/samples.npy", "--inputs", "x.npy", "--kept", 100)
    assert ended.returncode == 0, ended.stderr
    assert "x.npy: [200, 2, 3] is flattened to [200, 6]." in ended.stdout
    assert {path.name for path in (tmp_path / "own").iterdir()} == {
        "compact.npz", "mean.pt", "pruned.pt", "predictions.npy", "summary.json", "network.json",
    }  # fmt: skip
    whole = sequential(6, 9, 8, 3, activation=nn.Tanh)
    whole.load_state_dict(torch.load("own/pruned.pt", weights_only=True))
    torch.testing.assert_close(whole(inputs), net(inputs))
    predictions = torch.from_numpy(np.load("own/predictions.npy")).float()
    torch.testing.assert_close(predictions, net(inputs).softmax(-1))
    lines = ended.stdout.splitlines()
    assert sum(line.startswith("sample ") for line in lines) == 20  # not all 30
    assert "… 10 more" in lines
    assert len(read(tmp_path / "own/summary.json")["transpositions"]) == 30


# ---- mistakes


MISTAKES = {
    "one network": (["--networks", "a.pt"], "A Gaussian needs two networks or more"),
    "no hidden layer": (["--networks", "flat.pt", "flat.pt"], "no hidden layer"),
    "other sizes": (["--networks", "a.pt", "wide.pt"], "wide.pt: This is a network 6-7-3, not 6-5"),
    "no file": (["--networks", "a.pt", "no.pt"], "Cannot read no.pt: No such file"),
    "activation": (["--networks", "a.pt", "a.pt", "--activation", "gelu"], "choose one of relu"),
    "activation of samples": (
        ["--samples", "s/samples.npy", "--activation", "tanh"], "is in network.json",
    ),
    "labels alone": (["--networks", "a.pt", "a.pt", "--labels", "y.npy"], "give --inputs, too"),
    "test labels alone": (
        ["--networks", "a.pt", "a.pt", "--test_labels", "y.npy"], "give --test_inputs, too",
    ),
    "prune_by alone": (["--networks", "a.pt", "a.pt", "--prune_by", "std"], "give --kept, too"),
    "kept": (["--networks", "a.pt", "a.pt", "--kept", "0"], "a percentage above 0 and up to 100"),
    "out_dir": (["--networks", "a.pt", "a.pt", "--out_dir", "s"], "s is not empty: give another"),
    "out_dir is a file": (
        ["--networks", "a.pt", "a.pt", "--out_dir", "a.pt"], "File exists. Give another --out_dir",
    ),
    "out_dir is in a file": (
        ["--networks", "a.pt", "a.pt", "--out_dir", "a.pt/b"], "directory. Give another --out_dir",
    ),
    "no samples": (["--samples", "no.npy"], "Cannot read no.npy: there is no such"),
    "samples of another network": (["--samples", "s/samples.npy"], r"of the shape \[3, 4\]"),
    "network.json": (["--samples", "t/samples.npy"], r'it should look like this: {"sizes": \[784'),
    "inputs": (["--inputs", "wide.npy"], r"wide.npy has the shape \[2, 7\].*inputs \[N, 6\]"),
    "inputs are no array": (["--inputs", "a.pt"], "a.pt"),
    "inputs are texts": (["--inputs", "texts.npy"], "must be an array of numbers, written with"),
    "inputs are missing": (["--inputs", "no.npy"], "Cannot read the array no.npy"),
    "inputs not finite": (["--inputs", "nan.npy"], "NaN or infinite numbers in 1 inputs"),
    "labels of others": (["--inputs", "x.npy", "--labels", "long.npy"], r"2 inputs have labels"),
    "labels too high": (["--inputs", "x.npy", "--labels", "high.npy"], "from 0 to 3, but the net"),
    "labels as numbers": (["--inputs", "x.npy", "--labels", "half.npy"], "array of whole numbers"),
}  # fmt: skip


@pytest.fixture
def mistaken(own, tmp_path):
    """Files to make mistakes with."""
    for name, net in (
        ("a", sequential(6, 5, 3)),
        ("wide", sequential(6, 7, 3)),
        ("flat", sequential(6, 3)),
    ):
        torch.save(net.state_dict(), f"{name}.pt")
    for folder, network in (("s", '{"sizes": [6, 5, 3], "activation": "relu"}'), ("t", "{}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "network.json").write_text(network)
        np.save(tmp_path / folder / "samples.npy", np.zeros((3, 4)))
    arrays = {
        "x": np.zeros((2, 6)), "wide": np.zeros((2, 7)), "nan": np.full((1, 6), np.nan),
        "y": [0, 1], "long": [0, 1, 2], "high": [0, 3], "half": [0.0, 0.5], "texts": ["a"],
    }  # fmt: skip
    for name, values in arrays.items():
        np.save(f"{name}.npy", values)
    return own


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_with_a_sentence(name, mistaken, tmp_path):
    arguments, sentence = MISTAKES[name]
    if arguments[0] == "--inputs":
        arguments = ["--networks", "a.pt", "a.pt", *arguments]
    ended = mistaken(*arguments)
    assert ended.returncode == 2
    assert re.search(sentence, ended.stderr)
    assert ended.stderr.startswith("own_networks: ")
    assert len(ended.stderr.splitlines()) == 1
    made = tmp_path / "own"
    assert not made.exists() or not any(made.iterdir())  # so that the next try is not refused


def test_a_network_with_a_single_output_has_no_classes(own):
    torch.save(sequential(6, 5, 1).state_dict(), "a.pt")
    np.save("x.npy", np.zeros((2, 6)))
    ended = own("--networks", "a.pt", "a.pt", "--inputs", "x.npy")
    assert ended.returncode == 2
    assert "leave the inputs out" in ended.stderr
    assert own("--networks", "a.pt", "a.pt").returncode == 0


# ---- docs/own_networks.md, word for word


def commands() -> list[list[str]]:
    lines = [line.split("  #")[0] for line in PAGE.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("python ")]


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def write_files(tmp_path) -> list[nn.Sequential]:
    """Write what the page's commands name: networks for MNIST, and samples of them."""
    torch.manual_seed(0)
    nets = [sequential(784, 4, 10) for _ in range(3)]
    for name, net in zip("abc", nets, strict=True):
        torch.save(net.state_dict(), tmp_path / f"{name}.pt")
    for name in ("", "_test"):
        np.save(tmp_path / f"x{name}.npy", torch.rand(20, 784).numpy())
        np.save(tmp_path / f"y{name}.npy", torch.randint(10, (20,)).numpy())
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples/samples.npy", torch.stack([flat(net) for net in nets]).numpy())
    said = re.search(r'`({"sizes".*?})`', PAGE)[1]
    (tmp_path / "samples/network.json").write_text(said.replace("512", "4"))
    return nets


def test_the_pages_commands_run(own, script, tmp_path, data_dir):
    """The example from the repository's folder in a process of its own; the rest in this one."""
    write_files(tmp_path)
    networks, samples, evaluation, *scored = commands()
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    done = subprocess.run(
        [sys.executable, *networks], cwd=tmp_path, text=True, capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = {}
    exec(python_blocks()[1], names)
    assert np.array_equal(names["averaged"].numpy(), np.load("mine/predictions.npy"))
    assert names["logits"].shape == names["of_the_mean"].shape == (20, 10)
    assert own(*samples[1:]).returncode == 0
    assert evaluation[0] == "MNIST_eval.py"
    ended = script("MNIST_eval", *evaluation[1:], "--config_name", "quick", *TOY_EVALUATION)
    assert ended.returncode == 0, ended.stderr
    table = read(tmp_path / "default/eval-MNIST-quick-mine/table1.json")
    assert "hmc_rebased" in table
    for program, path, flag, gold in scored:  # tests/test_score.py runs such commands
        assert (program, flag) == ("score.py", "--gold")
        assert (tmp_path / path).exists()
        assert (REPOSITORY / "results" / "gold" / f"{gold}.npz").exists()


def test_the_pages_lines_of_python_run():
    code = python_blocks()[0]
    torch.manual_seed(0)
    net = sequential(6, 9, 3)
    nets = [net, permuted(net, [shift(9)]), permuted(net, [swap(9)])]
    before, there = flat(net), {"nets": nets, "inputs": torch.randn(50, 6)}
    exec(code, there)
    assert there["network"] == MLP((6, 9, 3))
    assert not there["q_r"].std.any()
    assert torch.equal(there["q_r"].mean, before)
    kept = flat(net) != 0  # the code has loaded the pruned network
    assert int(kept.sum()) == round(0.2 * len(before))
    assert torch.equal(flat(net)[kept], before[kept])
