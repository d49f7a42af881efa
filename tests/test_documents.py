"""CONTRIBUTING.md names real files and names; CITATION.cff cites both papers as README does."""

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
    (entry,) = [e for e in README.split("@inproceedings")[1:] if number in e]
    title = re.search(r"title\s+= \{(.*)\},\n", entry)[1].replace("{", "").replace("}", "")
    assert title == reference["title"]
    people = re.search(r"author\s+= \{(.*)\}", entry)[1].split(" and ")
    assert people == [f"{a['family-names']}, {a['given-names']}" for a in reference["authors"]]
    assert f"{{{reference['year']}}}" in entry


def test_the_licence_is_mit():
    text = (REPOSITORY / "LICENSE").read_text()
    assert text.startswith("MIT License\n\nCopyright (c) 2026 The authors of this repository\n")
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in text
