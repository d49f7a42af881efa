"""The report: complete, self-contained, true to the result files, and readable in a browser."""

import base64
import html
import json
import re
import shutil
from pathlib import Path

from papers.compact.pictures import SECTIONS
from utils.report.page import _score_table, _slow_mixing, write_report
from utils.report.results import Results, open_results
from utils.report.tables import paper_table1

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KINDS = ("ensemble", "VI", "net_matching", "transpositions", "HMC", "eval", "eval_pruning")


def results_in(out_dir: Path) -> Results:
    names = {kind: f"{kind}-MNIST-quick" for kind in KINDS}
    return open_results(out_dir / "default", "quick", "MNIST", names)


@pytest.fixture(scope="module")
def written(reproduced, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("results") / "quick"
    directory.mkdir()
    results = results_in(reproduced)
    chain = results.runs["HMC"].json("meta.json")["wandb_id"]
    notes = f"HMC run: {chain}\n\nThe chain is <short>.\n\nThe net is small.\n"
    (directory / "notes.txt").write_text(notes)
    return write_report(results, directory)


def test_the_page_has_every_figure_and_needs_no_network(written):
    page = written.read_text()
    images = re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)
    pictures = [picture for section in SECTIONS for picture in section.pictures]
    assert len(images) == len(pictures)
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert len(list((written.parent / "figures").glob("*.png"))) == len(pictures)
    assert not re.findall(r'(?:src|href)=["\'](?!data:|https://arxiv\.org|#)', page)
    assert "<script" not in page
    for picture in pictures:
        assert html.escape(picture.title) in page


def test_the_numbers_are_those_of_the_runs_and_of_the_paper(written, reproduced):
    page, numbers = written.read_text(), json.loads((written.parent / "numbers.json").read_text())
    run = reproduced / "default" / "eval-MNIST-quick"
    table, errors = (
        json.loads((run / f"{n}.json").read_text()) for n in ("table1", "table1_errors")
    )
    assert numbers["table1"] == table
    value, error = table["hmc_rebased"]["agreement"], errors["hmc_rebased"]["agreement"]
    published = paper_table1("MNIST")["hmc_rebased"]["agreement"]
    assert f"<td>{value:.4f} ± {error:.4f}<small>paper {published:.4f}</small></td>" in page
    value, error = table["vi"]["mean_accuracy"], errors["vi"]["mean_accuracy"]
    assert f"<td>{100 * value:.2f} ± {100 * error:.2f}<small>paper 98.04</small></td>" in page
    assert numbers["runs"]["HMC"]["config"]["num_train"] == 300
    assert numbers["runs"].keys() == set(KINDS)
    assert len(numbers["claims"]) == page.split("<table class=claims>", 1)[1].count("class=mark>")
    assert len(numbers["claims"]) == 12


def test_every_figure_names_its_command_and_notes_are_texts(written):
    page = written.read_text()
    assert "<pre>python MNIST_net_matching.py --out_dir" in page
    assert page.count("<details>") == sum(len(section.pictures) for section in SECTIONS) + 1
    assert "<p>The chain is &lt;short&gt;.</p>\n<p>The net is small.</p>" in page


def test_the_page_begins_with_its_words_and_then_the_verdicts(written):
    """In plain words, with a mark and a number; all of them are explained before."""
    page, numbers = written.read_text(), json.loads((written.parent / "numbers.json").read_text())
    introduction, after = page.split("<h3>In short</h3>")
    for term in (
        "μ and σ",
        "Rebasin",
        "q_d, q_r",
        "Agreement",
        "Total variation",
        "NoT",
        "Barrier",
    ):
        assert f"<dt>{term}" in introduction.split("<h2 id=findings>")[0]
    for mark in ("holds", "holds in part", "does not hold", "not measured"):
        assert f"</span> {mark}</strong>" in introduction.split("<h2 id=findings>")[1]
    shown = re.findall(r"</span> ([a-z ]+)</strong> <span>([^<]+)</span>", after.split("</ul>")[0])
    first = [claim for claim in numbers["claims"] if claim["in_short"]]
    assert shown == [(claim["mark"], html.escape(claim["in_short"])) for claim in first]
    assert len(first) == 5


def test_nothing_whole_and_current_is_taken_for_damaged(written):
    page = written.read_text()
    assert "another version" not in page
    assert "damaged" not in page
    claims = json.loads((written.parent / "numbers.json").read_text())["claims"]
    lacking = [claim["evidence"] for claim in claims if claim["mark"] == "not measured"]
    assert lacking == ["The paper's numbers are of a larger network, or of other data."]


def test_notes_about_other_runs_are_left_out(reproduced, tmp_path, capsys):
    """Those of a report that is in git, beside runs of one's own or none."""
    notes = tmp_path / "results" / "notes.txt"
    notes.parent.mkdir()
    for results in (results_in(reproduced), results_in(tmp_path / "nothing")):
        for first_line in ("HMC run: 0123456789ab", "HMC run: None", "Once upon a time"):
            notes.write_text(f"{first_line}\n\nIt took 1,240 steps.\n")
            page = write_report(results, notes.parent).read_text()
            assert "1,240" not in page
            assert "id=notes" not in page
            told = capsys.readouterr().out
            assert f"{notes} is left out of the report: it is about other runs" in told
            assert len(told.splitlines()) == 1
    notes.unlink()
    write_report(results_in(reproduced), notes.parent)
    assert capsys.readouterr().out == ""


def test_what_is_missing_is_said(tmp_path):
    path = write_report(results_in(tmp_path / "nothing"), tmp_path / "results")
    page = path.read_text()
    assert "Not finished: ensemble, VI, net_matching" in page
    assert "Not there yet: Figure 2: the loss between two networks over training (net_m" in page
    assert "Needs eval-MNIST-quick, which is not begun." in page
    assert page.count("<td><strong class=unknown>") == 12
    assert "In short" not in page


def test_a_report_is_made_of_damaged_runs_too(reproduced, tmp_path):
    batch = tmp_path / "default"
    shutil.copytree(reproduced / "default", batch)
    with open(batch / "HMC-MNIST-quick" / "trace.jsonl", "a") as file:
        file.write('{"iteration": 99, "accept')  # as a chain that runs leaves it for a moment
    (batch / "VI-MNIST-quick" / "meta.json").write_text('{"seconds": ')
    (batch / "ensemble-MNIST-quick" / "config.yaml").unlink()
    (batch / "eval-MNIST-quick" / "meta.json").unlink()
    (batch / "eval_pruning-MNIST-quick" / "pruning.json").write_text("{")
    page = write_report(results_in(tmp_path), tmp_path / "results").read_text()
    assert "VI-MNIST-quick has a damaged meta.json" in page
    assert "eval_pruning-MNIST-quick has a damaged pruning.json" in page
    assert "samples an hour. Acceptance" in page
    assert "another version" not in page


def test_a_report_is_made_of_files_cut_short_or_of_another_version(reproduced, tmp_path):
    batch = tmp_path / "default"
    shutil.copytree(reproduced / "default", batch)
    for name in ("training_dynamics.npz", "loss_along_line.png"):
        path = batch / "net_matching-MNIST-quick" / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (batch / "net_matching-MNIST-quick" / "barriers.png").write_bytes(b"")
    (batch / "VI-MNIST-quick" / "meta.json").write_text("{}")
    for run, name, keys in (
        ("eval", "diagnostics.json", ("prior_networks", "mean_with")),
        ("eval", "table1.json", ("vi", "agreement")),
        ("eval_pruning", "pruning.json", ("curves", "alive")),
        ("HMC", "diagnostics.json", ("groups", "weights", "largest_rhat")),
    ):
        take_away(batch / f"{run}-MNIST-quick" / name, *keys)
    page = write_report(results_in(tmp_path), tmp_path / "results").read_text()
    for run in ("net_matching", "eval", "eval_pruning", "HMC", "VI"):
        assert f"{run}-MNIST-quick was left by another version, or is damaged: move it away" in page
    for title in ("Figure 2: the loss between two", "The barrier that each way of rebasin leaves"):
        assert re.search(rf"Not there yet: [^.]*{title}[^.]*quick, damaged\)", page)
    for shown in ("Figure 3, right", "VI: training", "Figure 5, left"):
        assert f"<h3>{shown}" in page
    assert "draws of q_r" in page  # of a claim whose numbers are there


def take_away(path: Path, *keys: str) -> None:
    """What these keys of a JSON file lead to."""
    content = json.loads(path.read_text())
    found = content
    for key in keys[:-1]:
        found = found[key]
    del found[keys[-1]]
    path.write_text(json.dumps(content))


def test_runs_know_what_they_were_made_of_wherever_they_lie(reproduced, tmp_path):
    shutil.copytree(reproduced / "default", tmp_path / "default")
    results = results_in(tmp_path)
    assert results.runs["eval"].inputs.keys() == {"HMC", "ensemble", "VI"}
    assert results.other_inputs("eval", ("HMC", "ensemble", "VI")) == {}
    assert results.other_inputs("eval_pruning", ("eval",)) == {}


def test_an_evaluation_of_other_runs_says_so_at_the_top_and_at_table_1(reproduced, tmp_path):
    batch = tmp_path / "default"
    shutil.copytree(reproduced / "default", batch)
    meta = batch / "VI-MNIST-quick" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"wandb_id": "of another start"}))
    (batch / "HMC-MNIST-quick" / "DONE").unlink()
    page = write_report(results_in(tmp_path), tmp_path / "results").read_text()
    told = (
        "eval-MNIST-quick was made of other runs than those here: HMC has gone on since, "
        "VI is another one now."
    )
    top, table, rest = page.split(told)
    assert "<h2" not in top
    assert table.rsplit("<h2 ", 1)[1].startswith("id=table1")
    assert "other runs than those here" not in rest  # the pruning is of this evaluation


def test_figures_of_an_earlier_report_are_taken_away(tmp_path):
    figures = tmp_path / "results" / "figures"
    figures.mkdir(parents=True)
    (figures / "HMC_chain.png").touch()
    write_report(results_in(tmp_path), tmp_path / "results")
    assert list(figures.iterdir()) == []


@pytest.mark.parametrize(("rhat", "told"), [(1.01, False), (1.3, True), (None, True)])
def test_a_chain_that_has_not_mixed_is_pointed_out(tmp_path, rhat, told):
    results = results_in(tmp_path)
    run = results.runs["HMC"].directory
    run.mkdir(parents=True)
    group = {"largest_rhat": rhat, "smallest_ess_bulk": 3.3}
    content = {"groups": {"output_layer": group, "weights": None}}
    (run / "diagnostics.json").write_text(json.dumps(content))
    shown = _slow_mixing(results)
    assert bool(shown) == told
    if told:
        assert "output layer (largest R-hat" in shown
        assert "smallest bulk ESS 3)" in shown


def test_how_far_chains_are_is_said(tmp_path):
    results = results_in(tmp_path)
    run = results.runs["HMC"].directory
    run.mkdir(parents=True)
    (run / "chains.json").write_text(
        '{"num_chains": 2, "samples_per_chain": 10, "stored_per_chain": 4}'
    )
    page = write_report(results, tmp_path / "results").read_text()
    assert "HMC (4 of 10 samples of a chain), eval" in page


def test_what_is_not_finite_is_a_dash():
    cells = {"vi": {"nll": None, "sample_accuracy": 0.0}}
    table = _score_table(cells, {"vi": {"nll": None, "sample_accuracy": 0.01}}, {}, cells["vi"])
    assert "<td>– ± –</td><td>0.00 ± 1.00</td>" in table


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update",
                 "--disable-sync"]  # fmt: skip
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_complaint(browser, written, width):
    tab = browser.new_page(viewport={"width": width, "height": 900})
    complaints, requests = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(written.as_uri())
    images = tab.eval_on_selector_all("img", "all => all.map(i => [i.complete, i.naturalWidth])")
    assert len(images) == sum(len(section.pictures) for section in SECTIONS)
    assert all(complete and natural > 300 for complete, natural in images)
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(overflow) == 0  # wide tables scroll by themselves, not the page
    smallest = tab.eval_on_selector_all(
        "p, td, li", "all => Math.min(...all.map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 11
    shown = tab.eval_on_selector_all("img", "all => all.map(i => i.width / i.naturalWidth)")
    assert min(shown) > 0.4  # letters of a figure are 25 pixels high in its file
    tab.close()
