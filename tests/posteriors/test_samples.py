"""Sets of weight vectors, read from what runs and users have left."""

import json
from dataclasses import asdict, replace

from utils.networks.mlp import MLP
from utils.posteriors.moments import block_of
from utils.posteriors.samples import Points, num_blocks, open_samples
from utils.runs.files import save_json
from utils.runs.seeding import generator
from utils.settings.errors import UserError
from utils.symmetry.transformation import random_transformation

import numpy as np
import pytest
import torch

NETWORK = MLP((4, 3, 2))


def make_samples(directory, count: int, num_chains: int = 1):
    directory.mkdir(exist_ok=True)
    samples = np.arange(count)[:, None] * np.ones(NETWORK.num_weights, np.float32)
    np.save(directory / "samples.npy", samples)
    save_json(directory / "network.json", asdict(NETWORK))
    layout = {"num_chains": num_chains, "samples_per_chain": count // num_chains}
    (directory / "chains.json").write_text(json.dumps(layout))
    return directory


def numbers(samples) -> list[int]:
    return [int(weights[0]) for weights in samples]


def test_samples_are_evenly_spaced_and_chains_start_late(tmp_path):
    assert numbers(open_samples(make_samples(tmp_path / "a", 10))) == list(range(10))
    assert numbers(open_samples(tmp_path / "a", most=4)) == [0, 3, 6, 9]
    assert numbers(open_samples(tmp_path / "a", discard=0.5)) == [5, 6, 7, 8, 9]
    two = make_samples(tmp_path / "b", 20, num_chains=2)
    found = open_samples(two, discard=0.2, most=8)
    assert found.indices.shape == (2, 4)
    assert numbers(found) == [2, 4, 7, 9, 12, 14, 17, 19]
    assert numbers(open_samples(two / "samples.npy")) == list(range(20))


def test_of_chains_that_still_run_only_what_is_stored_is_read(tmp_path, capsys):
    two = make_samples(tmp_path / "a", 20, num_chains=2)
    layout = {"num_chains": 2, "samples_per_chain": 10, "stored_per_chain": 4}
    (two / "chains.json").write_text(json.dumps(layout))
    found = open_samples(two, discard=0.25)
    assert numbers(found) == [1, 2, 3, 11, 12, 13]
    assert "not finished: using its 4 samples so far, of 10" in capsys.readouterr().out


def test_chains_that_are_left_out_are_not_read(tmp_path):
    three = make_samples(tmp_path / "a", 12, num_chains=3)
    (three / "chains.json").write_text(json.dumps({"num_chains": 3, "left_out": [1]}))
    found = open_samples(three)
    assert numbers(found) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert found.num_chains == 2


def test_no_block_has_samples_of_two_chains(tmp_path):
    two = open_samples(make_samples(tmp_path / "a", 20, num_chains=2))
    assert [num_blocks(two, most) for most in (1, 2, 5, 20, 99)] == [2, 2, 4, 20, 20]
    for most in (2, 5, 7):
        count = num_blocks(two, most)
        blocks = [block_of(position, 20, count) for position in range(20)]
        assert not set(blocks[:10]) & set(blocks[10:])
        assert len(set(blocks)) == count
    assert num_blocks(open_samples(tmp_path / "a", most=2), 20) == 2


def test_as_in_the_paper_samples_are_500_to_9899(tmp_path):
    found = open_samples(make_samples(tmp_path / "a", 9900), discard=0.0505, most=1000)
    assert (numbers(found)[0], numbers(found)[-1], len(found)) == (500, 9899, 1000)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((3, 5)), r"of the shape \[3, 5\]"),
        (np.zeros(23), r"of the shape \[23\]"),
        (
            np.full((3, 23), "1.5"),
            r"has <U3 of the shape \[3, 23\]: .* needs numbers \[samples, 23\]",
        ),
    ],
)
def test_samples_of_another_shape_are_refused(tmp_path, array, sentence):
    make_samples(tmp_path / "a", 3)
    np.save(tmp_path / "a" / "samples.npy", array)
    with pytest.raises(UserError, match=sentence):
        open_samples(tmp_path / "a")


def test_samples_that_are_not_finite_are_named(tmp_path):
    make_samples(tmp_path / "a", 5)
    array = np.load(tmp_path / "a" / "samples.npy")
    array[3, -1] = np.nan
    np.save(tmp_path / "a" / "samples.npy", array)
    found = open_samples(tmp_path / "a", discard=0.4)  # of samples 2 to 4
    assert len(found[0]) == 23
    with pytest.raises(UserError, match=r"Sample 3 of .* has NaN or infinite weights"):
        found[1]


def test_archives_and_damaged_layouts_are_refused(tmp_path):
    two = make_samples(tmp_path / "a", 4, num_chains=2)
    (two / "chains.json").write_text('{"num_chains": 2, "stored_per_chain": "2"}')
    with pytest.raises(UserError, match="needs a whole number stored_per_chain, and not '2'"):
        open_samples(two)
    np.savez(two / "samples.npz", samples=np.zeros((3, 23)))
    with pytest.raises(UserError, match="Cannot read the samples"):
        open_samples(two / "samples.npz")


def test_an_archive_is_no_list_of_checksums(tmp_path):
    make_samples(tmp_path, 4)
    with open(tmp_path / "checksums.npy", "wb") as file:
        np.savez(file, checksums=np.zeros(4))
    with pytest.raises(UserError, match="remove it to do without"):
        open_samples(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    make_samples(tmp_path / "a", 3)
    (tmp_path / "a" / "samples.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"samples.npy: it is no array written with"):
        open_samples(tmp_path / "a")
    make_samples(tmp_path / "a", 3)
    (tmp_path / "a" / "network.json").unlink()
    with pytest.raises(UserError, match=r"network.json is missing"):
        open_samples(tmp_path / "a")


def test_too_few_samples_are_said_before_the_work_begins(tmp_path):
    make_samples(tmp_path / "a", 4)
    with pytest.raises(UserError, match="of which 1 are left"):
        open_samples(tmp_path / "a", discard=0.8)
    (tmp_path / "a" / "chains.json").write_text('{"num_chains": 3}')
    with pytest.raises(UserError, match="not 3 chains of equal length"):
        open_samples(tmp_path / "a")


def test_a_network_json_that_says_nothing_is_shown_what_it_is_like(tmp_path):
    make_samples(tmp_path / "a", 3)
    for text in ("[4, 3, 2]", "{", '{"sizes": "4-3-2", "activation": "relu"}', '{"sizes": [4]}'):
        (tmp_path / "a" / "network.json").write_text(text)
        with pytest.raises(UserError, match=r'like this: {"sizes": \[784, 512, 10\]'):
            open_samples(tmp_path / "a")


@pytest.mark.parametrize("text", ["{", "[]", '{"num_chains": null}', '{"num_chains": 0}'])
def test_chains_json_that_says_nothing_is_named(tmp_path, text):
    make_samples(tmp_path / "a", 4)
    (tmp_path / "a" / "chains.json").write_text(text)
    with pytest.raises(UserError, match=r"chains\.json"):
        open_samples(tmp_path / "a")


def test_double_precision_is_accepted(tmp_path):
    make_samples(tmp_path / "a", 3)
    np.save(tmp_path / "a" / "samples.npy", np.ones((3, NETWORK.num_weights)))
    assert open_samples(tmp_path / "a")[2].dtype.is_floating_point
    assert open_samples(tmp_path / "a")[2].itemsize == 4


def test_numbers_of_modes_and_the_mean_stay_with_the_draws(tmp_path):
    weights = torch.randn(3, NETWORK.num_weights, generator=generator(0))
    points = Points(weights[1:], NETWORK, {"modes": torch.tensor([4, 4])}, mean=weights[0])
    transformation = random_transformation(NETWORK, generator(1))
    again = points
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
        again.save(tmp_path / name)
        again = open_samples(tmp_path / name)
        assert again.known("modes").tolist() == [4, 4]
        assert again.mean.equal(weights[0])
        for each in (again, points):
            assert each.moved(transformation).mean.equal(transformation.apply(weights[0]))
    assert replace(points, mean=None).moved(transformation).mean is None
    (tmp_path / "once" / "gaussian_mean.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match=r"Cannot read .*gaussian_mean.npy"):
        open_samples(tmp_path / "once").mean  # noqa: B018
