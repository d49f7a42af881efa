"""The report of toy runs of all scripts, as a file and in a browser."""

import json
import re
import shutil
from pathlib import Path

from papers import PAPERS
from papers.compact.paper import PAPER
from papers.compact.tables import published_table1
from utils.report.page import write_report
from utils.report.results import Results, open_results

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KINDS = [step.kind for step in PAPER.steps]


def results_in(out_dir: Path) -> Results:
    names = {kind: f"{kind}-MNIST-quick" for kind in KINDS}
    return open_results(out_dir / "default", "quick", "MNIST", names)


@pytest.fixture(scope="module")
def written(reproduced, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("results") / "quick"
    return write_report([(PAPER, results_in(reproduced))], directory)


def numbers_beside(page: Path) -> dict:
    return json.loads((page.parent / "numbers.json").read_text())


def test_every_figure_and_every_claim_is_there(written):
    page, numbers = written.read_text(), numbers_beside(written)
    assert len(PAPER.figures) == 14
    assert page.count("<img ") == len(PAPER.figures)
    assert len(list((written.parent / "figures").glob("*.png"))) == len(PAPER.figures)
    assert page.split("<table class=claims>", 1)[1].count("class=mark>") == 13
    assert "another version" not in page
    assert "damaged" not in page
    missing = [c["evidence"] for c in numbers["claims"] if c["mark"] == "not measured"]
    assert missing == ["The paper's numbers are for a larger network or other data."]
    in_short = [c for c in numbers["claims"] if c["in_short"]]
    assert len(in_short) == 8  # the first says that so few draws do not decide it


def test_the_numbers_are_those_of_the_runs_and_of_the_paper(written, reproduced):
    page, numbers = written.read_text(), numbers_beside(written)
    run = reproduced / "default" / "eval-MNIST-quick"
    table, errors = (
        json.loads((run / f"{name}.json").read_text()) for name in ("table1", "table1_errors")
    )
    assert numbers["table1"] == table
    value, error = table["hmc_rebased"]["agreement"], errors["hmc_rebased"]["agreement"]
    published = published_table1("MNIST")["hmc_rebased"]["agreement"]
    assert f"<td>{value:.4f} ± {error:.4f}<small>paper {published:.4f}</small></td>" in page
    value, error = table["vi"]["mean_accuracy"], errors["vi"]["mean_accuracy"]
    assert f"<td>{100 * value:.2f} ± {100 * error:.2f}<small>paper 98.04</small></td>" in page
    assert numbers["runs"]["HMC"]["config"]["num_train"] == 300
    assert numbers["runs"].keys() == set(KINDS)
    for name in ("table1_errors", "evaluation", "pruning", "chain"):
        assert numbers[name]


def test_words_are_explained_before_they_are_used(written):
    introduction, findings = written.read_text().split("<h2 id=compact-findings>")
    for term in (
        "μ and σ",
        "Rebasin",
        "q_d, q_r",
        "Agreement",
        "Total variation",
        "NoT",
        "Barrier",
    ):
        assert f"<dt>{term}" in introduction
    for mark in ("holds", "holds in part", "does not hold", "not measured"):
        assert f"</span> {mark}</strong>" in findings.split("<h3>In short")[0]


def test_an_evaluation_is_made_from_the_runs_beside_it_wherever_they_are(reproduced, tmp_path):
    shutil.copytree(reproduced / "default", tmp_path / "default")
    results = results_in(tmp_path)
    assert results.runs["eval"].inputs.keys() == {"HMC", "ensemble", "VI"}
    assert results.other_inputs("eval", ("HMC", "ensemble", "VI")) == {}
    assert results.other_inputs("eval_pruning", ("eval",)) == {}


def test_figures_are_where_steps_leave_them():
    for paper in PAPERS:
        kinds = {step.kind for step in paper.steps}
        assert {figure.kind for figure in paper.figures} <= kinds
        assert {kind for kinds in paper.artefacts.values() for kind in kinds} <= kinds
        assert {kind for claim in paper.claims for kind in claim.kinds} <= kinds
        for number, step in enumerate(paper.steps):
            assert set(step.needs) <= {earlier.kind for earlier in paper.steps[:number]}


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
    assert len(images) == len(PAPER.figures)
    assert all(complete and natural > 300 for complete, natural in images)
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(overflow) == 0  # wide tables scroll by themselves, not the page
    smallest = tab.eval_on_selector_all(
        "p, td, li", "all => Math.min(...all.map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 11
    shares = "all => Math.min(...all.map(i => i.width / i.naturalWidth))"
    if width == 400:  # figures fit the screen, and can be enlarged to where they can be read
        widest = tab.eval_on_selector_all("img", "all => Math.max(...all.map(i => i.width))")
        assert widest <= width
        for zoom in tab.query_selector_all(".zoom"):
            zoom.click()
        assert tab.evaluate(overflow) == 0
    assert tab.eval_on_selector_all("img", shares) > 0.4  # letters are 25 pixels high in the file
    tab.close()


def test_first_columns_stay_in_sight_on_a_phone(browser, written):
    tab = browser.new_page(viewport={"width": 400, "height": 900})
    tab.goto(written.as_uri())
    scrolled = tab.eval_on_selector(
        "table.numbers",
        "t => { t.parentElement.scrollLeft = 150; return t.parentElement.scrollLeft }",
    )
    assert scrolled == 150
    left = tab.eval_on_selector("table.numbers td", "e => e.getBoundingClientRect().left")
    assert left >= 0
    tab.close()


def test_the_report_is_whole_without_any_runs(tmp_path):
    path = write_report([(PAPER, results_in(tmp_path / "nothing"))], tmp_path / "report")
    page = path.read_text()
    assert "Not finished: ensemble, VI, net_matching" in page
    assert "Needs eval-MNIST-quick, which is not begun." in page
    assert page.count("<td><strong class=unknown>") == 13
    assert len(re.findall("Missing: ", page)) == 5
