"""The report of paper B: whole without runs, and with what the scripts themselves leave."""

import json
import re

from papers.symmetry import figures
from papers.symmetry.paper import PAPER
from tests.conftest import run_all
from utils.report.page import write_report
from utils.report.results import open_results


def results_in(batch):
    names = {
        step.kind: f"{step.kind}-{step.dataset or 'MNIST'}-{step.plans['quick'].config}"
        for step in PAPER.steps
    }
    return open_results(batch, "quick", "MNIST", names)


def test_the_report_is_whole_without_any_runs(tmp_path):
    path = write_report([(PAPER, results_in(tmp_path / "nothing"))], tmp_path / "report")
    page = path.read_text()
    assert "Not finished: symmetry_toy, sgd" in page
    assert page.count("<td><strong class=unknown>") == len([c for c in PAPER.claims if c.kinds])
    assert len(re.findall("Missing: ", page)) >= 5


def test_readers_are_told_where_biases_count():
    """Masses leave them out, as the paper does; projection and imbalance do not."""
    assert "without biases" in PAPER.terms["Mass"]
    for term in ("Imbalance", "Projection"):
        assert "Biases count here" in PAPER.terms[term]
    assert "biases" in figures.balance.caption
    assert "including biases" in figures.intervention.caption


def test_runs_made_from_others_are_up_to_date(tmp_path, data_dir):
    """Networks, their masses and the marginals, as reproduce.py makes them one after the other."""
    batch = tmp_path / "default"
    networks = batch / "sgd-MNIST-networks_quick"
    small = ("--hidden_sizes", "6", "--num_train", "100", "--num_modes", "20", "--num_epochs", "1")
    run_all(tmp_path, data_dir, {
        "train": ("--method", "sgd", "--config_name", "networks_quick", *small),
        "symmetry_mass": ("--config_name", "quick", "--posterior", networks),
        "symmetry_marginals": ("--config_name", "quick", "--posteriors", f"sgd={networks}"),
    })  # fmt: skip
    results = results_in(batch)
    assert results.other_inputs("symmetry_mass", ("sgd",)) == {}
    assert results.other_inputs("symmetry_marginals", ("sgd",)) == {}
    path = write_report([(PAPER, results)], tmp_path / "report")
    numbers = json.loads((path.parent / "numbers.json").read_text())
    assert numbers["masses"]["networks"] == 20
    marks = {claim["claim"][:20]: claim["mark"] for claim in numbers["claims"]}
    assert marks["The mass is strictly"] == "holds"
    for anchor in ("symmetry_mass-representation_cost", "symmetry_marginals-largest_weights"):
        assert f"<figure id={anchor}>" in path.read_text()
