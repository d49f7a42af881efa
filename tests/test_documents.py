"""CONTRIBUTING.md names real files and names; CITATION.cff cites both papers as README does."""

import json
import re

from tests.conftest import REPOSITORY

import pytest
import yaml

CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
DOCS = REPOSITORY / "docs"
README = (REPOSITORY / "README.md").read_text()
PAPERS = {
    "2401.00611": ["Xiao", "Liu", "Bamler"],
    "2310.08287": ["Laurent", "Aldea", "Franchi"],
}


def quoted(text: str) -> list[str]:
    """Return what stands in backticks, without code blocks and placeholders."""
    found = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [name for name in found if "<" not in name]


def test_files_named_in_contributing_exist():
    paths = [name for name in quoted(CONTRIBUTING) if re.fullmatch(r"[\w/]+\.(py|yaml|md)", name)]
    assert len(paths) > 20
    assert [path for path in paths if not (REPOSITORY / path).is_file()] == []


@pytest.mark.parametrize("page", ["README.md", *sorted(p.name for p in DOCS.glob("*.md"))])
def test_files_named_in_the_pages_exist(page):
    text = (REPOSITORY / page if page == "README.md" else DOCS / page).read_text()
    paths = [name for name in quoted(text) if re.fullmatch(r"\w+/[\w/]+\.(py|yaml|md)", name)]
    assert [path for path in paths if not (REPOSITORY / path).is_file()] == []


def test_names_used_in_contributing_are_in_the_code():
    folders = (REPOSITORY / "utils", REPOSITORY / "papers", REPOSITORY / "tests")
    files = [*REPOSITORY.glob("*.py"), *(p for folder in folders for p in folder.rglob("*.py"))]
    code = "\n".join(path.read_text() for path in files if path.name != "test_documents.py")
    names = [
        match[1]
        for name in quoted(CONTRIBUTING)
        if (match := re.match(r"@?(?:run\.|network\.)?(\w+)(?:\(.*\))?$", name))
    ]
    assert len(names) > 40
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_the_citation_file_has_what_the_format_asks_for():
    """Citation File Format 1.2.0: its required keys, and those of references and authors."""
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert all(citation[key] for key in ("message", "title", "authors"))
    assert citation["authors"] == [{"name": "The authors of this repository"}]
    assert citation["license"] == "MIT"
    for reference in citation["references"]:
        assert reference["type"] == "conference-paper"
        assert all(reference[key] for key in ("title", "authors", "conference"))
        assert all({"family-names", "given-names"} == set(a) for a in reference["authors"])


@pytest.mark.parametrize("number", PAPERS)
def test_both_papers_are_cited_alike(number):
    references = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["references"]
    (reference,) = [r for r in references if r["identifiers"][0]["value"] == f"arXiv:{number}"]
    assert reference["url"] == f"https://arxiv.org/abs/{number}"
    assert [author["family-names"] for author in reference["authors"]] == PAPERS[number]
    title = f"[{reference['title']}]({reference['url']})"
    *others, last = PAPERS[number]
    assert f"{title} ({', '.join(others)} and {last}, {reference['year']})" in " ".join(
        README.split()
    )


def test_the_licence_is_mit():
    text = (REPOSITORY / "LICENSE").read_text()
    assert text.startswith("MIT License\n\nCopyright (c) 2026 The authors of this repository\n")
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in text


# ---- tables of docs/compact.md and docs/methods.md

RESULTS = REPOSITORY / "results"
SCORES = {  # of columns in docs/compact.md: key, digits, and factor of what is shown
    "TV": ("total_variation", 3, 1), "agreement": ("agreement", 3, 1), "NLL": ("nll", 3, 1),
    "ECE": ("ece", 3, 1), "accuracy (%)": ("sample_accuracy", 1, 100),
    "accuracy of μ_r": ("mean_accuracy", 1, 100), "accuracy of μ": ("mean_accuracy", 1, 100),
}  # fmt: skip
WAYS = "rebased", "mean_reference", "contribution", "contribution_to_mean", "consensus"
SCALED = (
    "rebased", "rebased_tau", "rebased_repair", "contribution", "contribution_tau",
    "contribution_to_mean", "contribution_to_mean_tau", "consensus", "consensus_tau",
    "consensus_taus", "consensus_repair", "consensus_repair_tau", "low_rank", "vi",
    "ensemble_sample",
)  # fmt: skip
CONTROL = "direct", "rebased", "mean_reference", "contribution"


@pytest.mark.parametrize(
    ("start", "keys", "name"),
    [
        ("| q_r of samples rebased |", WAYS, "eval"), ("| | τ | TV |", SCALED, "eval"),
        ("| 30 samples of the control |", CONTROL, "control"),
    ],
)  # fmt: skip
def test_compact_forms_are_those_of_their_evaluation(start, keys, name):
    folder = RESULTS / "mlp-MNIST" / name
    values, errors = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("table1", "table1_errors")
    )
    text = (DOCS / "compact.md").read_text()
    table = text[text.index(start) :].split("\n\n")[0].splitlines()
    head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table)
    for key, line in zip(keys, lines[: len(keys)], strict=True):
        column = key if key in values else f"hmc_{key}"
        for title, cell in zip(head, line, strict=True):
            if title in SCORES:
                score, digits, factor = SCORES[title]
                value, error = (factor * each[column][score] for each in (values, errors))
                assert cell.rstrip(" %") == f"{value:.{digits}f} ± {error:.{digits}f}"


def test_samples_beside_gaussians_are_those_of_their_evaluation():
    held_out = stored_limits()["held_out"]
    text = (DOCS / "compact.md").read_text()
    table = text[text.index("| fitted to the first half") :].split("\n\n")[0].splitlines()
    assert len(table) - 2 == len(held_out)
    for line, found in zip(table[2:], held_out.values(), strict=True):
        cells = [cell.strip().split(" ± ")[0] for cell in line.split("|")[2:-1]]
        names = (("total_variation", 3, 1), ("agreement", 3, 1), ("accuracy", 1, 100),
                 ("nll", 3, 1), ("ece", 3, 1))  # fmt: skip
        assert cells == [f"{factor * found[name]:.{d}f}" for name, d, factor in names]


def test_limits_of_q_r_are_those_of_the_evaluation():
    limits, text = stored_limits(), " ".join((DOCS / "compact.md").read_text().split())
    rows = {row["draws"]: row for row in limits["draws"]["rows"]}
    listed = [
        f"{rows[n]['agreement']:.3f} ± {rows[n]['agreement_error']:.3f}" for n in (5, 20, 100, 500)
    ]
    limit = limits["draws"]["limit"]
    expected = [
        f"{', '.join(listed)} and {rows[1000]['agreement']:.3f}.",
        f"it is {limit['agreement']:.3f} ± {limit['agreement_error']:.3f}.",
    ]
    for found in (limits["reliability"], {k: v["reliability"] for k, v in limits["null"].items()}):
        part = found["hmc_rebased"]
        halves = [part[g][of]["halves"] for of in ("mean", "std") for g in ("W1", "W2")]
        expected += [f"{value:.2f}".replace("-", "−") for value in halves]
    assert [each for each in expected if each not in text] == []


def stored_limits() -> dict:
    path = RESULTS / "mlp-MNIST" / "eval" / "diagnostics.json"
    return json.loads(path.read_text())["limits"]


@pytest.mark.parametrize("name", ["tiny", "quick"])
def test_biases_of_samplers_are_those_of_their_run(name):
    text = (DOCS / "methods.md").read_text()
    records = (RESULTS / "sampler-bias" / f"{name}.jsonl").read_text().splitlines()
    for cell in map(json.loads, records[1:]):
        scores = [
            f"{cell[score]:.3f} ± {cell[f'{score}_error']:.3f}"
            for score in ("total_variation", "nll_difference", "ece_difference")
        ]
        moments = [
            f"{100 * each['bias']:.1f} ± {100 * each['error']:.1f} %"
            for each in (cell["second_moments"][group] for group in ("W1", "W2"))
        ]
        line = " | ".join([f"{cell['rate']:g}", f"{cell['temperature']:.3f}", *scores, *moments])
        assert f"| {line.replace('-', '−')} |" in text


def answer_to(question: str) -> str:
    lines = (DOCS / "referee.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {question}")]
    return line.replace("−", "-").replace("*", "")


def test_answers_to_a_referee_have_the_numbers_of_the_laptop_run():
    numbers = json.loads((REPOSITORY / "results" / "laptop" / "numbers.json").read_text())
    found, curves = numbers["evaluation"], numbers["pruning"]["curves"]["all"]

    def pruned(curve: str) -> str:
        share = 100 * curves[curve]["sparsity"]["0.05"]
        return f"{share:.0f} %" if share >= 0.6 else f"{share:.1f} %"

    std = [found["correlations"][frame]["ensemble and vi"]["std"] for frame in ("after", "before")]
    averages = [found["average_std"][frame]["hmc"] for frame in ("before", "after")]
    halves, fits = found["halves_of_hmc"], numbers["table1"]
    expected = {
        "Do σ of the ensemble and of VI": [f"{value:.2f}" for value in std],
        "Does HMC's σ prune its own": [
            pruned("hmc mean, std of hmc"), pruned("hmc mean, random of hmc"),
        ],
        "Does VI's σ prune HMC's": [
            pruned("hmc single, std of vi"), pruned("hmc single, std of hmc"),
            pruned("vi mean, std of vi"),
        ],
        "Is the ensemble's own σ": [
            pruned("ensemble mean, std of ensemble"), pruned("ensemble mean, abs_mean of ensemble"),
        ],
        "Does rebasin shrink": [f"{each[g]:.3f}" for g in ("W2", "W1") for each in averages],
        "Does HMC agree with itself": [
            f"{100 * halves['agreement']:.1f} %", f"{halves['total_variation']:.3f}",
        ],
        "Is HMC better than five": [
            f"{fits[column][score]:.3f}" for score in ("nll", "ece", "brier")
            for column in ("hmc_sample", "ensemble_sample")
        ],
    }  # fmt: skip
    for question, values in expected.items():
        answer = answer_to(question)
        assert [value for value in values if value not in answer] == []
