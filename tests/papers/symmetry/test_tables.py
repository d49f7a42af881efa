"""The paper's tables have the numbers of the result files, next to the published ones."""

import json
from pathlib import Path

from papers.symmetry import tables
from papers.symmetry.paper import PAPER
from utils.report.results import Results, open_results

import pytest


@pytest.fixture
def write(tmp_path):
    """Write a result file; return the results that have it."""

    def write(kind: str, name: str, content: dict) -> Results:
        (tmp_path / kind).mkdir()
        (tmp_path / kind / name).write_text(json.dumps(content))
        kinds = [step.kind for step in PAPER.steps]
        return open_results(Path(tmp_path), "quick", "MNIST", {kind: kind for kind in kinds})

    return write


def test_shapes_stand_beside_the_papers(write):
    shape = {"radius": 2.98765, "lobe": 2.1, "side": 2.71, "scaled_lobe": 1.4}
    errors = dict.fromkeys(shape, 0.0123)
    results = write("symmetry_toy", "summary.json", {"shape": shape, "shape_errors": errors})
    (table,) = tables.toy_shapes(results)
    assert table.head == ["", "paper", "ours"]
    assert table.rows[0][1:] == ["3.0", "2.988 ± 0.012"]


MASSES = {
    "network": "optunet for [1, 28, 28]", "networks": 40, "mass_range": [134.9, 282.9],
    "minimum_range": [106.9, 272.7], "excess_modes": [0.101, 0.297],
    "excess_quantiles": [0.015, 0.02, 0.1, 0.26, 0.3, 0.4, 0.42],
    "clusters": [
        {"mass": 151.0, "mass_error": 2.0, "minimum": 114.0, "minimum_error": 3.0,
         "excess": 0.31, "excess_error": 0.01, "networks": 30},
    ],
}  # fmt: skip


def test_masses_of_optunets_stand_beside_the_papers(write):
    (table,) = tables.masses(write("symmetry_mass", "summary.json", MASSES))
    rows = {name: values for name, *values in table.rows}
    assert rows["mass as trained"] == ["120 to 280", "135 to 283"]
    assert rows["excess [%]"] == ["1 to 58", "2 to 42"]
    assert rows["modes of the excess [%]"] == ["10, 30", "10, 30"]
    assert rows["cluster of 30 networks: mass"] == ["150", "151.0 ± 2.0"]
    assert rows["its excess [%]"] == ["33", "31.0 ± 1.0"]


def test_masses_of_other_networks_stand_alone(write):
    other = MASSES | {"network": "784-64-10 (relu)"}
    (table,) = tables.masses(write("symmetry_mass", "summary.json", other))
    assert table.head == ["", "ours"]
    assert ["mass as trained", "135 to 283"] in table.rows


def test_one_network_is_singular(write):
    (table,) = tables.masses(write("symmetry_mass", "summary.json", MASSES | {"networks": 1}))
    assert table.title == "1 network: optunet for [1, 28, 28]"


def test_pairs_of_networks_stand_beside_the_papers(write):
    side = {"mean": 0.0747, "quantiles": [0.024, 0.07, 0.131], "disagreement": 0.15,
            "relative_deviation_without_image_noise": 0.139}  # fmt: skip
    summary = {
        "networks": 1000, "ood": "FashionMNIST", "inside": side, "outside": side | {"mean": 0.3},
        "correlation": {"rho": 0.4, "low": 0.37, "high": 0.43, "p": 0.005},
        "groups": {"copies": {"inside": 0.0036, "outside": 0.0064}},
    }  # fmt: skip
    (table,) = tables.pairs_of_networks(write("symmetry_diversity", "summary.json", summary))
    rows = {name: values for name, *values in table.rows}
    assert rows["MI in distribution [nats]"] == [
        "0.1075 (0.1035 to 0.112)", "0.0747 (0.024 to 0.131)",
    ]  # fmt: skip
    assert rows["rank correlation of both"] == ["no slope", "0.40 (0.37 to 0.43)"]
    assert ["–", "13.9, 13.9"] in rows.values()


def test_projection_is_compared_cell_by_cell(write):
    scores = {"nll": 0.3, "calibration_error": 0.01, "barrier": 0.1}
    cells = [
        {"network": network, "optimizer": "SGD", "projected": projected, "excess": excess,
         "accuracy": 0.9 + change * projected, **scores}
        for network, excess, changes in (("mlp", 0.1, (0.01, 0.03)), ("lenet", 0.5, (0, 0)))
        for change in changes
        for projected in (False, True)
    ]  # fmt: skip
    cells.append({"network": "mlp", "optimizer": "Adam", "projected": False, "excess": 0.9})
    results = write("symmetry_balance", "summary.json", {"cells": cells})
    (table,) = tables.projection_effects(results)
    assert table.rows[0][:4] == ["mlp", "2", "10 to 90", "+2.000 ± 1.000"]
    assert table.rows[1][:4] == ["lenet", "2", "50 to 50", "+0.000 ± 0.000"]
    assert "diverged" not in table.note


def test_cells_that_diverged_are_not_in_the_table(write):
    adam = {"network": "mlp", "optimizer": "Adam", "projected": False, "excess": 0.9}
    sgd = [
        {"network": "mlp", "optimizer": "SGD", "projected": projected, "diverged": True}
        for projected in (False, True)
    ]
    results = write("symmetry_balance", "summary.json", {"cells": [*sgd, adam]})
    (table,) = tables.projection_effects(results)
    assert table.rows == [["mlp", "0", "90 to 90", "–", "–", "–", "–"]]
    assert "diverged in 2 of 3 cells" in table.note


def test_every_test_of_uniformity_has_a_row(write):
    test = {
        "counts": [60, 40], "effective_draws": 50.0, "chi_square": 4.0,
        "corrected_chi_square": 2.0, "p": 0.157,
    }  # fmt: skip
    content = {"HMC": {"groups": {"h1": {"as they are": test, "shuffled": test}}}}
    (table,) = tables.uniformity_tests(write("symmetry_marginals", "marginals.json", content))
    assert table.rows[0] == ["HMC", "2 of h1", "as they are", "100", "50.0", "4.0", "2.0", "0.16"]
    assert len(table.rows) == 2
    assert "1157" in table.note


def test_order_and_gaussians(write):
    steps = {"first": 0.25, "last": 0.99}
    summary = {
        "interval": {"first": 0.1, "last": 1.0}, "norm_step": steps, "norm_start_to_end": -0.02,
        "not_by_weight_step": {"first": 3.5, "last": 0.0}, "not_by_weight_start_to_end": 4.25,
    }  # fmt: skip
    (table,) = tables.order_changes(write("symmetry_order", "summary.json", summary))
    assert table.rows[0] == ["τ by norm", "0.250", "0.990", "−0.020"]
    assert table.rows[1] == ["NoT per layer, by weight", "3.50", "0.00", "4.25"]
    scores = {
        "agreement": [0.5, 0.7], "total_variation": [0.3, 0.3], "accuracy": [0.5, 0.5],
        "mean_accuracy": [0.9],
    }  # fmt: skip
    content = {"HMC": {"scales": {"unit norm": {"q_r": scores}}}}
    (table,) = tables.gaussians_without_scales(write("symmetry_compact", "compact.json", content))
    assert table.rows == [
        ["HMC", "unit norm", "q_r", "0.600 ± 0.100", "0.300 ± 0.000", "50.00 ± 0.00", "90.00"]
    ]
