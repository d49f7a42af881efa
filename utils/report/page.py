"""The report of a batch of runs: one HTML file that needs no other, and its numbers.

`write_report` only reads run directories, so a report can be made again at any time from what
exists. Parts whose run is missing or damaged say so.

notes.txt beside the report, written by hand, has parts that begin with a line `<kind> run: <id>`
(for example `HMC run: 0123456789ab`). A part is shown if results have this run.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from utils.report.chain import progress
from utils.report.elements import document, escaped, folded, image, paragraph, table
from utils.report.paper import (
    MARKS,
    UNKNOWN,
    Claim,
    Conclusion,
    Paper,
    RunFigure,
    RunTables,
    Section,
    Verdict,
    judge,
)
from utils.report.results import DAMAGED, Missing, Results, RunResult, or_none, why_not
from utils.report.tables import Table
from utils.runs.files import save_json, write_atomically
from utils.runs.progress import duration

import yaml
from PIL import Image

BROKEN_IMAGE = (OSError, SyntaxError)  # what PIL raises if a PNG is cut off or is no PNG


def file_name(figure: RunFigure) -> str:
    """Return the name of a figure among those of all runs."""
    return f"{figure.kind}_{figure.name}.png"


def read_images(paper: Paper, results: Results) -> dict[str, bytes]:
    """Return the compressed PNGs of the figures that exist and can be read, by `file_name`."""
    images = {}
    for figure in paper.figures:
        try:
            path = results.runs[figure.kind].path(f"{figure.name}.png")
            images[file_name(figure)] = _compressed(path)
        except (Missing, *BROKEN_IMAGE):
            continue
    return images


def _compressed(path: Path) -> bytes:
    """Return a PNG in 256 colours: a third of the size, and no difference to the eye."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        buffer = BytesIO()
        small.save(buffer, format="png", optimize=True)
        return buffer.getvalue()


def write_images(images: dict[str, bytes], directory: Path) -> None:
    """Write the images, and delete those that an earlier report has left."""
    directory.mkdir(exist_ok=True)
    for name, data in images.items():
        write_atomically(directory / name, lambda file, data=data: file.write(data))
    for path in directory.glob("*.png"):
        if path.name not in images:
            path.unlink()


# ---- the report

STYLE_SHEET = Path(__file__).with_name("report.css")


@dataclass(frozen=True)
class Entry:
    """What the report shows of one paper."""

    paper: Paper
    results: Results
    verdicts: list[Verdict]
    images: dict[str, bytes]
    notes: str

    def anchor(self, name: str) -> str:
        return f"{self.paper.name}-{name}"


def write_report(
    papers: Sequence[tuple[Paper, Results]], directory: Path, conclusions: Sequence[Conclusion] = ()
) -> Path:
    """Write report.html, numbers.json and the figures; return the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    notes = read_notes(directory / "notes.txt", papers)
    entries = [
        Entry(
            paper, results, [judge(claim, results) for claim in paper.claims],
            read_images(paper, results),
            "\n\n".join(note.text.strip() for note in notes if note.is_about(results)),
        )
        for paper, results in papers
    ]  # fmt: skip
    save_json(directory / "numbers.json", numbers_of(entries, conclusions))
    write_images(
        {name: data for entry in entries for name, data in entry.images.items()},
        directory / "figures",
    )
    path = directory / "report.html"
    write_atomically(path, lambda file: file.write(page(entries, conclusions).encode()))
    return path


class Note(NamedTuple):
    """What is written by hand about a run, and with it about its paper."""

    kind: str
    wandb_id: str
    text: str

    def is_about(self, results: Results) -> bool:
        run = results.runs.get(self.kind)
        return bool(run) and or_none(lambda: run.json("meta.json")["wandb_id"]) == self.wandb_id


def read_notes(path: Path, papers: Sequence[tuple[Paper, Results]]) -> list[Note]:
    """Return the notes in a file, each of which begins with a line "KIND run: ID".

    Say so if there are some about no run of these papers.
    """
    if not path.exists():
        return []
    before, *parts = re.split(r"^(\w+) run: (\w+) *\n", path.read_text(), flags=re.MULTILINE)
    notes = list(map(Note, parts[::3], parts[1::3], parts[2::3]))
    left_out = [note for note in notes if not any(note.is_about(each) for _, each in papers)]
    if before.strip() or left_out:
        print(
            f"Notes in {path} are left out of the report: they are about other runs. To show them, "
            "let them begin with a line “KIND run: ID”, such as “HMC run: …” with the wandb_id in "
            "the meta.json of that run."
        )
    return notes


# ---- numbers.json


def numbers_of(entries: list[Entry], conclusions: Sequence[Conclusion]) -> dict:
    """Return everything the report states, for programs to read."""
    results = entries[0].results
    numbers = {
        "preset": results.preset,
        "dataset": results.dataset,
        "claims": [_claim_numbers(entry.paper, v) for entry in entries for v in entry.verdicts],
    }
    if len(entries) > 1:
        numbers["advice"] = _advice(entries, conclusions)
    for entry in entries:
        for name, read in entry.paper.numbers.items():
            if name in numbers:
                raise ValueError(f"Two papers write {name} into numbers.json: rename one.")
            numbers[name] = or_none(partial(read, entry.results))
    runs: dict[str, dict | None] = {}
    for run in _runs(entries):  # papers may have different runs of one kind
        name = run.directory.name if run.kind in runs else run.kind
        runs[name] = or_none(partial(_run_numbers, run))
    return numbers | {"runs": runs}


def _claim_numbers(paper: Paper, verdict: Verdict) -> dict:
    claim = verdict.claim
    return {
        "paper": paper.name, "claim": claim.text, "where": claim.source, "rule": claim.criterion,
        "mark": verdict.mark, "in_short": verdict.in_short, "evidence": verdict.evidence,
        "of_the_paper": not claim.ours, "number": claim.number,
    }  # fmt: skip


def _run_numbers(run: RunResult) -> dict:
    meta = run.json("meta.json")
    return {
        "finished": run.finished,
        "wandb_id": meta.get("wandb_id"),
        "summary": or_none(lambda: run.json("summary.json")),
        "config": run.config,
        **{name: meta[name] for name in ("seconds", "peak_memory", "matmul", "sessions")},
    }


def _runs(entries: list[Entry]) -> Iterable[RunResult]:
    """Return every run that was begun, once."""
    return {run.directory: run for entry in entries for run in entry.results.begun()}.values()


# ---- the page


def page(entries: list[Entry], conclusions: Sequence[Conclusion]) -> str:
    """Return the whole HTML document."""
    parts = [part for entry in entries for part in _entry(entry) if part]
    if len(entries) > 1:
        parts = [*_overview(entries, conclusions), *parts]
    title = "; ".join(map(_title, entries))
    return document(title, STYLE_SHEET.read_text(), [*parts, *_run_tables(_runs(entries))])


def _overview(entries: list[Entry], conclusions: Sequence[Conclusion]) -> list[str]:
    """Return links to the papers' parts, and advice with the claims of all that it rests on."""
    results = entries[0].results
    title = f"The papers together: {results.preset} preset, {results.dataset}"
    links = [
        f"<a href=#{entry.anchor('top')}>{escaped(entry.paper.heading)}</a>" for entry in entries
    ]
    advice = _advice(entries, conclusions)
    links_to_claims = {
        id(verdict.claim): f"<li>{_marked(verdict.mark)} <a href=#{_claim_anchor(entry, verdict)}>"
        f"{escaped(verdict.claim.text)}</a></li>"
        for entry in entries
        for verdict in entry.verdicts
        if verdict.mark != UNKNOWN
    }
    return [
        f"<h1>{escaped(title)}</h1>",
        f"<nav>{' '.join(links)} <a href=#runs>Runs</a></nav>",
        "<p class=soft>The advice is computed from these runs. It rests on the claims below it; "
        "each leads to its criterion and evidence.</p>",
        *(
            f"<h3>{escaped(each.question)}</h3>\n{paragraph(advice[each.question])}\n"
            + _short_list(links_to_claims.get(id(claim), "") for claim in each.claims)
            for each in conclusions
            if each.question in advice
        ),
    ]


def _advice(entries: list[Entry], conclusions: Sequence[Conclusion]) -> dict[str, str]:
    """Return the advice by question, without questions that these runs do not answer."""
    results = {entry.paper.name: entry.results for entry in entries}
    advice = {each.question: each.advise(results) for each in conclusions}
    return {question: text for question, text in advice.items() if text}


def _in_short(verdicts: list[Verdict]) -> str:
    """Return the claims with their marks, and below each what was found."""
    return _short_list(
        f"<li>{_marked(verdict.mark)} <span>{escaped(verdict.claim.text)}"
        f"<small>{escaped(verdict.in_short)}</small></span></li>"
        for verdict in verdicts
    )


def _short_list(items: Iterable[str]) -> str:
    return f"<ul class=short>{''.join(items)}</ul>"


def _title(entry: Entry) -> str:
    results = entry.results
    return f"{entry.paper.heading}: {results.preset} preset, {results.dataset}"


def _entry(entry: Entry) -> list[str]:
    """Return a paper's part of the page."""
    return [
        *_heading(entry),
        *_warnings(entry),
        *_findings(entry),
        _notes(entry),
        *(_section(entry, section) for section in entry.paper.sections),
    ]


def _heading(entry: Entry) -> list[str]:
    paper = entry.paper
    places = {"findings": "Findings", **({"notes": "Differences"} if entry.notes else {})}
    places |= {section.anchor: section.short for section in paper.sections}
    links = [f"<a href=#{entry.anchor(a)}>{escaped(name)}</a>" for a, name in places.items()]
    terms = [
        f"<div><dt>{escaped(k)}</dt> <dd>{escaped(v)}</dd></div>" for k, v in paper.terms.items()
    ]
    return [
        f"<h1 id={entry.anchor('top')}>{escaped(_title(entry))}</h1>",
        f'<p class=soft>A reproduction of <a href="{escaped(paper.url)}">{escaped(paper.title)}'
        f"</a> ({escaped(paper.authors)}) from one batch of runs. Numbers after ± are standard "
        "errors.</p>",
        f"<nav>{' '.join(links)} <a href=#runs>Runs</a></nav>",
        paragraph(paper.introduction),
        f"<dl class=terms>{''.join(terms)}</dl>",
    ]


def _warnings(entry: Entry) -> list[str]:
    """Return what a reader must know before the findings."""
    results = entry.results
    unfinished = [run for run in results.runs.values() if not run.finished]
    warnings = [
        f"Not finished: {', '.join(map(progress, unfinished))}." if unfinished else "",
        *map(results.outdated, results.runs),
        *(caution(results) for caution in entry.paper.cautions),
    ]
    return [paragraph(warning, "warning") for warning in warnings if warning]


def _notes(entry: Entry) -> str:
    if not entry.notes.strip():
        return ""
    paragraphs = "\n".join(map(paragraph, entry.notes.strip().split("\n\n")))
    heading = "Differences from the paper, and how to read them"
    return f"<h2 id={entry.anchor('notes')}>{heading}</h2>\n{paragraphs}"


# ---- findings


def _findings(entry: Entry) -> list[str]:
    """Return what the marks mean, the main findings in short, and every claim with its evidence."""
    papers = [verdict for verdict in entry.verdicts if not verdict.claim.ours]
    ours = [verdict for verdict in entry.verdicts if verdict.claim.ours]
    marks = [verdict.mark for verdict in papers]
    counts = ", ".join(f"{mark}: {marks.count(mark)}" for mark in MARKS if mark in marks)
    in_short = [verdict for verdict in entry.verdicts if verdict.in_short]
    numbered = any(verdict.claim.number for verdict in entry.verdicts)
    numbers = " So are the numbers of claims." if numbered else ""
    return [
        f"<h2 id={entry.anchor('findings')}>Findings</h2>",
        f"<p class=soft>The mark says how a claim of the paper fares here: "
        f"{', '.join(map(_marked, MARKS))}. The criteria are stated with the claims; they are "
        f"ours, because the paper gives none.{numbers} {escaped(entry.paper.rule)}</p>",
        f"<h3>In short</h3>\n{_in_short(in_short)}" if in_short else "",
        "<h3>What the paper says, and what our numbers say</h3>",
        f"<p>{len(papers)} claims ({counts}).</p>",
        _claim_table(entry, papers),
        f"<h3>What the paper leaves open</h3>\n{_claim_table(entry, ours)}" if ours else "",
    ]


def _claim_anchor(entry: Entry, verdict: Verdict) -> str:
    return entry.anchor(verdict.claim.name)


def _claim_table(entry: Entry, verdicts: list[Verdict]) -> str:
    """Return the verdicts as a table, those not measured last."""
    rows = "".join(
        f"<tr id={_claim_anchor(entry, verdict)}><td>{_marked(verdict.mark)}</td>"
        f"<td>{escaped(verdict.claim.text)}<br><span class=soft>{escaped(_origin(verdict.claim))}; "
        f"{escaped(verdict.claim.criterion)}</span></td><td>{escaped(verdict.evidence)}</td></tr>"
        for verdict in sorted(verdicts, key=lambda verdict: verdict.mark == UNKNOWN)
    )
    return (
        "<table class=claims><thead><tr><th></th><th>claim · source · criterion</th>"
        f"<th>evidence</th></tr></thead>\n<tbody>{rows}</tbody></table>"
    )


def _origin(claim: Claim) -> str:
    """Return a claim's number, if it has one, and where it is made."""
    return f"claim {claim.number} ({claim.source})" if claim.number else claim.source


def _marked(mark: str) -> str:
    sign, style = MARKS[mark]
    return f"<strong class={style}><span class=mark>{sign}</span> {mark}</strong>"


# ---- sections


def _section(entry: Entry, section: Section) -> str:
    parts = [f"<h2 id={entry.anchor(section.anchor)}>{escaped(section.title)}</h2>"]
    missing = []
    for part in section.parts:
        run = entry.results.runs[part.kind]
        if isinstance(part, RunTables):
            parts += [*_tables(part, entry.results), _command(run)]
        elif file_name(part) in entry.images:
            parts.append(_figure(part, entry.images[file_name(part)], run))
        else:
            damaged = ", damaged" if (run.directory / f"{part.name}.png").exists() else ""
            missing.append(f"{part.title} ({run.directory.name}{damaged})")
    if missing:
        parts.append(paragraph(f"Missing: {'; '.join(missing)}."))
    return "\n".join(filter(None, parts))


def _tables(part: RunTables, results: Results) -> list[str]:
    outdated = results.outdated(part.kind)
    warning = [paragraph(outdated, "warning")] if outdated else []
    contents = part.contents(results)
    return warning + [table(c) if isinstance(c, Table) else paragraph(c) for c in contents]


def _figure(figure: RunFigure, data: bytes, run: RunResult) -> str:
    return (
        f"<h3>{escaped(figure.title)}</h3>\n<figure id={figure.kind}-{figure.name}>"
        f"{image(data, figure.title)}<figcaption>{escaped(figure.caption)}</figcaption>"
        f"{_command(run)}</figure>"
    )


def _command(run: RunResult) -> str:
    """Return the command that began a run, and its config, behind a click."""
    try:
        words = shlex.split(run.json("meta.json")["sessions"][0]["command"])
        config = yaml.safe_dump(run.config, sort_keys=False)
    except (Missing, *DAMAGED) as error:
        return paragraph(why_not(error, run)) if run.begun else ""
    command = shlex.join(word for word in words if word != "--resume")  # as a user would begin it
    return folded(f"command and config of {run.directory.name}", [command, config])


# ---- runs


def _run_tables(runs: Iterable[RunResult]) -> list[str]:
    """Return a table of times, and one of machines and versions, which most runs share."""
    rows, places = [], {}
    for run in runs:
        try:
            cells, place = _run_cells(run)
            places.setdefault(place, []).append(run.kind)
        except (Missing, *DAMAGED) as error:
            cells = [why_not(error, run), "", "", ""]
        rows.append([run.kind, *cells])
    times = Table(["run", "state", "time", "peak memory", "commit"], rows)
    machines = Table(
        ["runs", "machine", "versions"],
        [[", ".join(kinds), *place] for place, kinds in places.items()],
        title="Machines and versions",
    )
    return ["<h2 id=runs>Runs</h2>", table(times), table(machines)]


def _run_cells(run: RunResult) -> tuple[list[str], tuple[str, str]]:
    """Return state, time, memory and commits of a run, and its machine and versions."""
    meta = run.json("meta.json")
    last = meta["sessions"][-1]
    commits = dict.fromkeys((s["git_commit"] or "unknown")[:7] for s in meta["sessions"])
    changed = any(s["git_uncommitted_changes"] for s in meta["sessions"])
    versions = [f"{name} {version}" for name, version in last["versions"].items()]
    cells = [
        "finished" if run.finished else "begun",
        duration(meta["seconds"]),
        f"{meta['peak_memory'] / 1e9:.2f} GB",
        ", ".join(commits) + (" and changes" if changed else ""),
    ]
    machine = f"{last['processor']}, {last['device']}, {last['threads']} threads"
    return cells, (machine, ", ".join([f"Python {last['python']}", *versions]))
