"""The report of a made-up paper: complete, self-contained, and true to its result files."""

import base64
import html
import json
import re
from dataclasses import replace
from pathlib import Path

from utils.report.chain import mixing_warning
from utils.report.figures import panels
from utils.report.page import write_report
from utils.report.paper import (
    FAILS,
    HOLDS,
    PARTLY,
    UNDECIDED,
    Conclusion,
    Finding,
    Paper,
    Plan,
    RunFigure,
    RunTables,
    Section,
    Step,
    all_or_half,
    all_or_some,
    claim,
    decide,
    figure,
    is_below,
)
from utils.report.results import Results, open_results
from utils.report.tables import Table

import pytest


@claim(
    "Ages are <whole> numbers.",
    source="Table 7",
    criterion="holds if they are",
    kinds=("census",),
    in_short={HOLDS: "Ages are whole"},
)
def ages_are_whole(results: Results) -> Finding:
    age = results.json("census", "ages.json")["age"]
    return Finding(HOLDS, f"The age is {age}.", f"{age} years")


@figure("census", "ages.json", title="Figure 7: ages", caption="Ages & years.")
def ages(source: Path):
    drawn, ((axis,),) = panels(1, 1)
    axis.plot([0, json.loads(source.read_text())["age"]])
    return drawn


def age_table(results: Results) -> list[Table | str]:
    age = results.json("census", "ages.json")["age"]
    return [Table(["", "age"], [["Ada", f"{age}\npaper 36"]], title="Ages"), "All of them."]


PAPER = Paper(
    name="ages",
    title="On Ages",
    authors="Somebody, 1999",
    url="https://arxiv.org/abs/1",
    heading="Ages of people",
    introduction="People have ages.",
    terms={"Age": "years since birth."},
    steps=(Step("census", "census", {"quick": Plan("quick", 1)}),),
    artefacts={"figure7": ("census",)},
    claims=(ages_are_whole,),
    sections=(Section("people", "People", "All people", (RunTables("census", age_table), ages)),),
    cautions=(lambda results: "Ages change.",),
    numbers={"age": lambda results: results.json("census", "ages.json")["age"]},
)
SESSION = {
    "command": "python census.py --resume --seed 1", "git_commit": "0123456789",
    "git_uncommitted_changes": False, "python": "3.11", "versions": {"torch": "2"},
    "processor": "a CPU", "device": "cpu", "threads": 2,
}  # fmt: skip
META = {
    "wandb_id": "abc", "seconds": 90, "peak_memory": 1e9, "matmul": "default",
    "sessions": [SESSION], "inputs": {},
}  # fmt: skip


class ToyRun:
    """What figures need of a run."""

    def __init__(self, directory: Path):
        self.directory = directory

    def path(self, name: str) -> Path:
        return self.directory / name

    def save_figure(self, name: str, drawn) -> None:
        drawn.savefig(self.path(f"{name}.png"))


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished run of the made-up paper."""
    directory = tmp_path / "runs" / "census-MNIST-quick"
    directory.mkdir(parents=True)
    (directory / "meta.json").write_text(json.dumps(META))
    (directory / "config.yaml").write_text("seed: 1\n")
    (directory / "ages.json").write_text('{"age": 37}')
    (directory / "DONE").touch()
    ages.save(ToyRun(directory))
    return directory


@pytest.fixture
def results(tmp_path) -> Results:
    return open_results(tmp_path / "runs", "quick", "MNIST", {"census": "census-MNIST-quick"})


@pytest.fixture
def write(results, tmp_path):
    """Write the report and return its page."""

    def write(*papers: Paper, conclusions=()) -> str:
        pairs = [(paper, results) for paper in papers or (PAPER,)]
        return write_report(pairs, tmp_path / "report", conclusions).read_text()

    return write


def test_everything_of_a_paper_is_in_the_report(run, write, tmp_path):
    page = write()
    assert "<h1 id=ages-top>Ages of people: quick preset, MNIST</h1>" in page
    for text in ("On Ages", "Somebody, 1999", "<dt>Age</dt>", "Ages change.", "All of them."):
        assert text in page
    assert "Ages are whole: 37 years." in page
    assert "Ages are &lt;whole&gt; numbers." in page
    assert "The age is 37." in page
    assert "<td>37<small>paper 36</small></td>" in page
    assert "<figcaption>Ages &amp; years.</figcaption>" in page
    assert "<pre>python census.py --seed 1</pre>" in page  # without --resume
    assert "<pre>seed: 1" in page
    (image,) = re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)
    saved = (tmp_path / "report" / "figures" / "census_ages.png").read_bytes()
    assert base64.b64decode(image) == saved
    assert saved.startswith(b"\x89PNG")
    assert not re.findall(r'(?:src|href)=["\'](?!data:|https://arxiv\.org)', page)
    for anchor in re.findall(r"href=#([\w-]+)", page):
        assert f"id={anchor}>" in page


def test_the_numbers_are_for_programs_to_read(run, write, tmp_path):
    write()
    numbers = json.loads((tmp_path / "report" / "numbers.json").read_text())
    assert (numbers["preset"], numbers["dataset"], numbers["age"]) == ("quick", "MNIST", 37)
    assert numbers["runs"]["census"]["config"] == {"seed": 1}
    (told,) = numbers["claims"]
    assert told["mark"] == "holds"
    assert told["in_short"] == "Ages are whole: 37 years."


def ask_for_age(results) -> str:
    return f"Ask them: {results['ages'].json('census', 'ages.json')['age']}."


def test_papers_share_a_report_and_their_runs(run, write, tmp_path):
    question = Conclusion("How old are people?", (ask_for_age,), PAPER.claims)
    assert question.question not in write(conclusions=[question])  # nothing to draw together
    page = write(
        PAPER, replace(PAPER, name="again", heading="Ages again", numbers={}),
        conclusions=[question, Conclusion("Nobody knows?", (lambda results: "",), ())],
    )  # fmt: skip
    assert re.findall("<h1 id=([a-z-]+)>", page) == ["ages-top", "again-top"]
    overview = page.split("<h1 id=ages-top>")[0]
    assert "<h3>How old are people?</h3>" in overview
    assert "<p>Ask them: 37.</p>" in overview
    assert "<a href=#again-ages_are_whole>Ages are &lt;whole&gt; numbers.</a>" in overview
    assert "<tr id=again-ages_are_whole>" in page
    assert "Ages are whole: 37 years." not in overview  # it is among the paper's findings
    assert "Nobody knows?" not in page  # as no claim answers it
    assert "id=ages-people>" in page
    assert "id=again-people>" in page
    numbers = json.loads((tmp_path / "report" / "numbers.json").read_text())
    assert numbers["advice"] == {"How old are people?": "Ask them: 37."}
    assert page.count("<h2 id=runs>") == 1
    rows = page.split("<h2 id=runs>")[1].split("</table>")[0]
    assert rows.count("<td>census</td>") == 1


def test_papers_cannot_overwrite_each_others_numbers(run, write):
    with pytest.raises(ValueError, match="Two papers write age"):
        write(PAPER, replace(PAPER, name="again"))


def test_a_question_of_ours_is_not_counted_as_a_claim(run, write):
    question = replace(ages_are_whole, text="Do ages matter?", ours=True)
    page = write(replace(PAPER, claims=(ages_are_whole, question)))
    assert "1 claims (holds: 1)" in page
    assert "Do ages matter?" in page.split("What the paper leaves open")[1]


def test_a_finding_stands_below_its_claim_and_the_claims_mark(run, write):
    page = write()
    assert (
        "<li><strong class=holds><span class=mark>✓</span> holds</strong> "
        "<span>Ages are &lt;whole&gt; numbers.<small>Ages are whole: 37 years.</small></span></li>"
    ) in page


def test_claims_have_the_numbers_by_which_docs_refer_to_them(run, write, tmp_path):
    assert "numbers of claims" not in write()
    page = write(replace(PAPER, claims=(replace(ages_are_whole, number="4a"),)))
    assert "claim 4a (Table 7); holds if they are" in page
    assert "So are the numbers of claims" in page
    (told,) = json.loads((tmp_path / "report" / "numbers.json").read_text())["claims"]
    assert told["number"] == "4a"


@pytest.mark.parametrize(
    ("value", "error", "expected"), [(1, 0, True), (2, 0, False), (1, 0.6, None), (0, 0.6, True)]
)
def test_two_errors_from_a_limit_decide(value, error, expected):
    assert is_below(value, 1.5, error) is expected


@pytest.mark.parametrize(
    ("parts", "some", "half"),
    [
        ((True, True), HOLDS, HOLDS),
        ((True, False), PARTLY, PARTLY),
        ((False, False), FAILS, FAILS),
        ((True, None), UNDECIDED, UNDECIDED),
        ((None, True, False), PARTLY, UNDECIDED),
        ((None, False, False), UNDECIDED, FAILS),
    ],
)
def test_there_is_no_verdict_if_it_depends_on_an_unknown_part(parts, some, half):
    assert (decide(parts, all_or_some), decide(parts, all_or_half)) == (some, half)


def test_what_is_missing_is_said(write):
    page = write()
    assert "Not finished: census." in page
    assert "Missing: Figure 7: ages (census-MNIST-quick)." in page
    assert "Needs census-MNIST-quick, which is not begun." in page
    assert "<td><strong class=unknown>" in page
    assert "In short" not in page


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_damaged_results_leave_the_rest_of_the_report(run, write, content):
    (run / "ages.json").write_text(content)
    page = write()
    assert re.search(r"census-MNIST-quick (has a|was left by another version or is) damaged", page)
    assert "Figure 7: ages</h3>" in page


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n", b"no image"])
def test_a_damaged_figure_is_named(run, write, content):
    (run / "ages.png").write_bytes(content)
    assert "Missing: Figure 7: ages (census-MNIST-quick, damaged)." in write()


@pytest.mark.parametrize("content", ["{", "{}", '{"sessions": []}'])
def test_a_damaged_meta_json_leaves_the_rest_of_the_report(run, write, content):
    (run / "meta.json").write_text(content)
    page = write()
    assert "census-MNIST-quick" in page.split("<h2 id=runs>")[1]
    assert "<td>37<small>" in page


def test_how_far_chains_are_is_said(run, write):
    (run / "DONE").unlink()
    layout = {"num_chains": 2, "samples_per_chain": 10, "stored_per_chain": 4}
    (run / "chains.json").write_text(json.dumps(layout))
    assert "Not finished: census (4 of 10 samples of a chain)." in write()


def test_a_run_made_from_other_runs_says_so_at_the_top_and_at_its_tables(run, write, tmp_path):
    sentence = "census-MNIST-quick was made from other runs than those beside it: "
    (run / "meta.json").write_text(json.dumps(META | {"inputs": {"census": {"run": "xyz"}}}))
    page = write()
    assert page.count(sentence) == 2
    assert sentence in page.split("<h2")[0]
    assert sentence in page.split("id=ages-people")[1]


def test_notes_are_shown_with_the_runs_they_are_about(run, write, tmp_path, capsys):
    path = tmp_path / "report" / "notes.txt"
    path.parent.mkdir()
    path.write_text("census run: abc\n\nAges are <old>.\n\ncensus run: abc\nThey grow.\n")
    page = write()
    assert "<p>Ages are &lt;old&gt;.</p>\n<p>They grow.</p>" in page
    assert "href=#ages-notes" in page
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "first_line", ["census run: xyz", "other run: abc", "Once upon a time", ""]
)
def test_notes_about_other_runs_are_left_out(run, write, tmp_path, capsys, first_line):
    path = tmp_path / "report" / "notes.txt"
    path.parent.mkdir()
    path.write_text(f"{first_line}\n\nIt took 1,240 steps.\n")
    page = write()
    assert "1,240" not in page
    assert "ages-notes" not in page
    assert f"Notes in {path} are left out of the report" in capsys.readouterr().out


def test_figures_of_an_earlier_report_are_deleted(run, write, tmp_path):
    figures = tmp_path / "report" / "figures"
    figures.mkdir(parents=True)
    (figures / "old.png").touch()
    write()
    assert [path.name for path in figures.iterdir()] == ["census_ages.png"]


def test_titles_are_escaped(run, write):
    section = Section("a", "A", "A", (RunFigure("census", "ages", "<&>", "c", "s", ages.draw),))
    page = write(replace(PAPER, sections=(section,)))
    assert f"<h3>{html.escape('<&>')}</h3>" in page


@pytest.mark.parametrize(("rhat", "warned"), [(1.01, False), (1.3, True), (None, True)])
def test_a_chain_that_has_not_mixed_is_pointed_out(run, results, rhat, warned):
    group = {"largest_rhat": rhat, "smallest_ess_bulk": 3.3}
    content = {"groups": {"probability": group, "output_layer": group, "weights": None}}
    (run / "diagnostics.json").write_text(json.dumps(content))
    warning = mixing_warning(replace(results, runs={"HMC": results.runs["census"]}))
    assert ("probability" in warning) == warned
    assert "output layer" not in warning  # it follows the labels of units
    assert ("smallest bulk ESS 3" in warning) == warned
