"""The report of a batch of runs: one HTML file that needs nothing but itself, and its numbers.

`write_report` reads run directories only, so a report can be made again at any time, of whatever
is there: parts whose run is missing say so.
"""

import base64
import html
import math
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path

from utils.claims import FAILS, HOLDS, PARTLY, UNKNOWN, Verdict, judge_all
from utils.evaluation import COLUMNS, ROWS
from utils.files import save_json, write_atomically
from utils.pictures import SECTIONS, Picture, Section, read_images, write_images
from utils.progress import duration
from utils.results import Missing, Results, RunResult
from utils.tables import (
    REFERENCE_HEADINGS,
    number,
    paper_values,
    reference_rows,
    sparsity_table,
    summary_lines,
)

import yaml
from PIL import Image

STYLE_SHEET = Path(__file__).with_name("report.css")
PAPER = "A Compact Representation for Bayesian Neural Networks By Removing Permutation Symmetry"
MARKS = {HOLDS: ("✓", "holds"), PARTLY: ("◐", "partly"), FAILS: ("✗", "fails"),
         UNKNOWN: ("–", "unknown")}  # fmt: skip
ROW_NAMES = {
    "agreement": "Agreement ↑",
    "total_variation": "TV ↓",
    "sample_accuracy": "Test accuracy of samples (%) ↑",
    "mean_accuracy": "Test accuracy of μ (%) ↑",
    "nll": "NLL (nats) ↓",
    "ece": "ECE ↓",
    "brier": "Brier ↓",
}
PLACES = {
    "findings": "Findings",
    "table1": "Table 1",
    **{section.anchor: section.short for section in SECTIONS},
    "checks": "Checks",
    "chain": "Diagnostics of the chain",
    "runs": "Runs",
}
LARGEST_RHAT = 1.05  # that goes without saying
LEGEND = (
    "<p class=soft>Agreement: share of test images to which both predictions give the same label. "
    "TV: total variation between the predictive distributions. q_d, q_r: networks drawn from the "
    "Gaussian per weight, before and after rebasin to one of the samples; μ is the one network at "
    "its mean. “To mean”: rebased to where the samples' own mean comes to rest. “Low rank”: a "
    "Gaussian with the rebased samples' covariances, too, not only the variance of each weight. "
    "ECE: expected calibration error; Brier: squared error of the probabilities.</p>"
)
LONG_CELL = 60  # characters, from which on a cell may break into lines
IN_PERCENT = ("sample_accuracy", "mean_accuracy")


def write_report(results: Results, directory: Path) -> Path:
    """report.html, numbers.json and the figures as files; the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    verdicts = judge_all(results)
    save_json(directory / "numbers.json", numbers_of(results, verdicts))
    images = read_images(results)
    write_images(images, directory / "figures")
    notes = directory / "notes.txt"
    text = page(results, verdicts, images, notes.read_text() if notes.exists() else "")
    path = directory / "report.html"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def numbers_of(results: Results, verdicts: list[Verdict]) -> dict:
    """Everything the report states, for programs to read."""
    return {
        "preset": results.preset,
        "dataset": results.dataset,
        "claims": [
            {"claim": v.claim.text, "where": v.claim.where, "rule": v.claim.rule, "mark": v.mark,
             "evidence": v.evidence, "of_the_paper": not v.claim.ours}
            for v in verdicts
        ],
        "table1": _or_none(lambda: results.table),
        "table1_errors": _or_none(lambda: results.errors),
        "evaluation": _or_none(lambda: results.diagnostics),
        "pruning": _or_none(lambda: results.pruning),
        "chain": _or_none(lambda: results.runs["HMC"].json("diagnostics.json")["groups"]),
        "runs": {run.kind: _or_none(partial(_run_numbers, run)) for run in results.begun()},
    }  # fmt: skip


def _run_numbers(run: RunResult) -> dict:
    meta = run.json("meta.json")
    return {
        "finished": run.finished,
        "summary": _or_none(lambda: run.json("summary.json")),
        "config": run.config,
        "seconds": meta["seconds"],
        "peak_memory": meta["peak_memory"],
        "matmul": meta["matmul"],
        "sessions": meta["sessions"],
    }


def _or_none(read: Callable):
    try:
        return read()
    except Missing:
        return None


# ---- the page


def page(
    results: Results, verdicts: list[Verdict], images: dict[Picture, bytes], notes: str
) -> str:
    """The whole HTML document."""
    sections = [
        _heading(results),
        _findings(verdicts),
        _notes(notes),
        _tables(results),
        *(_pictures(section, results, images) for section in SECTIONS),
        _evaluation(results),
        _chain(results),
        _runs(results),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(_title(results))}</title>\n<style>\n{STYLE_SHEET.read_text()}</style>\n"
        "</head>\n<body>\n" + "\n".join(filter(None, sections)) + "\n</body>\n</html>\n"
    )


def _title(results: Results) -> str:
    return f"Compact BNN posterior: {results.preset} on {results.dataset}"


def _heading(results: Results) -> str:
    quick = (
        "<p><strong>The quick preset is a smaller network on part of the data.</strong> Its "
        "numbers are alike in kind to the paper's, not in value.</p>"
    )
    running = [run for run in results.runs.values() if not run.finished]
    parts = [
        f"<h1>{_text(_title(results))}</h1>",
        f"<p class=soft>A reproduction of <a href='https://arxiv.org/abs/2401.00611'>{PAPER}</a> "
        "(Xiao, Liu, Bamler, 2023), from the runs of one batch. Numbers after ± are standard "
        "errors.</p>",
        "<nav>" + " ".join(f"<a href=#{name}>{_text(told)}</a>" for name, told in PLACES.items())
        + "</nav>",
        "<p>Permuting the hidden units of a network changes its weights and not its function. "
        "Rebasin aligns all samples of the posterior to one reference network; then the mean and "
        "standard deviation of each weight, q_r, mean something. q_d is the same Gaussian without "
        "rebasin. NoT, the number of transpositions, is how many swaps a permutation takes.</p>",
        quick if results.preset == "quick" else "",
        f"<p><strong>Not finished: {_text(', '.join(map(_how_far, running)))}.</strong></p>"
        if running
        else "",
        *(_outdated(results, kind) for kind in results.runs),
        _slow_mixing(results),
    ]  # fmt: skip
    return "\n".join(filter(None, parts))


def _outdated(results: Results, kind: str) -> str:
    told = results.outdated(kind)
    return f"<p><strong>{_text(told)}</strong></p>" if told else ""


def _how_far(run: RunResult) -> str:
    """An unfinished run, and of chains how much of them could be evaluated."""
    try:
        layout = run.json("chains.json")
    except Missing:
        return run.kind
    done, whole = layout["stored_per_chain"], layout["samples_per_chain"]
    return f"{run.kind} ({done} of {whole} samples of a chain)"


def _slow_mixing(results: Results) -> str:
    """What everything that comes from the chain has to be read with."""
    groups = _or_none(lambda: results.runs["HMC"].json("diagnostics.json")["groups"]) or {}
    slow = [
        f"{name.replace('_', ' ')} (largest R-hat {float(group['largest_rhat'] or 'inf'):.2f}, "
        f"smallest bulk ESS {group['smallest_ess_bulk']:.0f})"
        for name, group in groups.items()
        if group and not (group["largest_rhat"] or math.inf) <= LARGEST_RHAT
    ]
    if not slow:
        return ""
    return (
        f"<p><strong>The chain has not mixed in every respect:</strong> R-hat is above "
        f"{LARGEST_RHAT} for {_text(', '.join(slow))}. A longer chain may move what rests on "
        "them; see <a href=#chain>its diagnostics</a>.</p>"
    )


def _findings(verdicts: list[Verdict]) -> str:
    papers = [verdict for verdict in verdicts if not verdict.claim.ours]
    ours = [verdict for verdict in verdicts if verdict.claim.ours]
    marks = [verdict.mark for verdict in papers]
    counts = ", ".join(f"{mark}: {marks.count(mark)}" for mark in MARKS if mark in marks)
    short = "".join(
        f"<li><strong>{_text(v.claim.headline)}</strong> {_text(v.evidence)}</li>"
        for v in papers
        if v.claim.headline and v.mark != UNKNOWN
    )
    return (
        "<h2 id=findings>Findings</h2>\n"
        + (f"<h3>In short</h3>\n<ul>{short}</ul>\n" if short else "")
        + f"<h3>What the paper says, and what our numbers say</h3>\n"
        f"<p>{len(papers)} claims ({counts}). The rules below each are ours: the paper gives "
        f"no thresholds.</p>\n{_claims_table(papers)}\n"
        f"<h3>What the paper leaves open</h3>\n{_claims_table(ours)}"
    )


def _claims_table(verdicts: list[Verdict]) -> str:
    """Those that nothing has been measured for come last."""
    rows = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mark == UNKNOWN):
        sign, name = MARKS[verdict.mark]
        claim = verdict.claim
        rows.append(
            f"<tr><td class={name}><span class=mark>{sign}</span> {verdict.mark}</td>"
            f"<td>{_text(claim.text)}<br><span class=soft>{_text(claim.where)}; "
            f"{_text(claim.rule)}</span></td><td>{_text(verdict.evidence)}</td></tr>"
        )
    return (
        "<table class=claims><thead><tr><th></th><th>claim, where, and the rule of its mark</th>"
        f"<th>evidence</th></tr></thead>\n<tbody>{''.join(rows)}</tbody></table>"
    )


def _notes(notes: str) -> str:
    """Paragraphs that were written for these results by hand."""
    if not notes.strip():
        return ""
    paragraphs = "\n".join(f"<p>{_text(part)}</p>" for part in notes.strip().split("\n\n"))
    return f"<h2 id=notes>Where we differ from the paper, and what to make of it</h2>\n{paragraphs}"


def _tables(results: Results) -> str:
    try:
        table, errors = results.table, results.errors
    except Missing as missing:
        return f"<h2 id=table1>Table 1</h2>\n<p>{_text(missing)}.</p>"
    paper = paper_values("table1") if results.dataset == "MNIST" else {}
    beside = "; the paper's value below each" if paper else ""
    return "\n".join([
        "<h2 id=table1>Table 1: posteriors as functions</h2>",
        f"<p class=soft>Against the prediction of HMC's samples, on the test images{beside}.</p>",
        _outdated(results, "eval"),
        _score_table(table, errors, paper, ROWS[:4]),
        LEGEND,
        "<h3>Beyond the paper: likelihood and calibration</h3>",
        _score_table(table, errors, {}, ROWS[4:]),
        _command(results.runs["eval"]),
    ])  # fmt: skip


def _score_table(table: dict, errors: dict, paper: dict, rows: Iterable[str]) -> str:
    head = ["", *(ROW_NAMES[row] for row in rows)]
    body = []
    for name, column in table.items():
        cells = [_text(COLUMNS[name])]
        for row in rows:
            if row not in column:
                cells.append("–")
                continue
            factor, digits = (100, 2) if row in IN_PERCENT else (1, 4)
            cell = " ± ".join(
                number(value and factor * value, digits)
                for value in (column[row], errors[name][row])
            )
            published = paper.get(name, {}).get(row)
            if published is not None:
                cell += f"<small>paper {factor * published:.{digits}f}</small>"
            cells.append(cell)
        body.append(cells)
    return _html_table(head, body, escape=False)


def _pictures(section: Section, results: Results, images: dict[Picture, bytes]) -> str:
    parts, lacking = [f"<h2 id={section.anchor}>{section.title}</h2>"], []
    for picture in section.pictures:
        run = results.runs[picture.kind]
        if picture not in images:
            lacking.append(f"{picture.title} ({run.directory.name})")
            continue
        parts.append(f"<h3>{picture.title}</h3>")
        source = base64.b64encode(images[picture]).decode()
        width, height = Image.open(BytesIO(images[picture])).size
        parts.append(
            f"<figure id={picture.name}><div class=scroll tabindex=0>"
            f'<img src="data:image/png;base64,{source}" '
            f'width={width // 2} height={height // 2} alt="{_text(picture.title)}"></div>'
            f"<figcaption>{_text(picture.caption)}</figcaption>{_command(run)}</figure>"
        )
    if lacking:
        parts.append(f"<p>Not there yet: {_text('; '.join(lacking))}.</p>")
    if section.anchor == "pruning":
        parts.append(_sparsity(results))
    return "\n".join(parts)


def _command(run: RunResult) -> str:
    """How a run was begun, with its config behind a click."""
    try:
        session, config = run.json("meta.json")["sessions"][0], run.config
    except Missing as missing:
        return f"<p>{_text(missing)}.</p>"
    return (
        f"<details><summary>command and config of {_text(run.directory.name)}</summary>"
        f"<pre>{_text(_plain(session['command']))}</pre>"
        f"<pre>{_text(yaml.safe_dump(config, sort_keys=False))}</pre></details>"
    )


def _plain(command: str) -> str:
    """Without --resume, which reproduce.py gives by habit."""
    return shlex.join(word for word in shlex.split(command) if word != "--resume")


def _sparsity(results: Results) -> str:
    try:
        curves = results.pruning["curves"]
    except Missing:
        return ""
    return (
        "<h3>Share of weights that are zero when this much accuracy is lost</h3>\n"
        "<p class=soft>“alive” counts only weights that are not behind dead pixels.</p>\n"
        + _html_table(*sparsity_table(curves))
    )


def _evaluation(results: Results) -> str:
    """What only this repository tells: checks, other references, the null."""
    try:
        diagnostics = results.diagnostics
    except Missing:
        return ""
    lines = "".join(f"<li>{_text(line)}</li>" for line in summary_lines(diagnostics))
    return (
        "<h2 id=checks>Checks, and what the paper does not tell</h2>\n"
        f"<ul>{lines}</ul>\n<h3>q_r by the choice of reference, and of networks that know nothing "
        f"of the data</h3>\n<p class=soft>{diagnostics['study_samples']} other samples, matched "
        f"on {diagnostics['study_images']} images; “with” tells correlations over weights. The "
        "last row rebases draws from the prior to HMC's reference: what it reaches is the work of "
        "the alignment alone.</p>\n" + _html_table(REFERENCE_HEADINGS, reference_rows(diagnostics))
    )


def _chain(results: Results) -> str:
    run = results.runs["HMC"]
    try:
        found = run.json("diagnostics.json")
    except Missing as missing:
        return f"<h2 id=chain>Diagnostics of the chain</h2>\n<p>{_text(missing)}.</p>"
    head = ["quantity", "largest R-hat", "smallest bulk ESS", "smallest tail ESS",
            "median bulk ESS", "median bulk ESS per hour"]  # fmt: skip
    body = [
        [name.replace("_", " "), f"{float(group['largest_rhat'] or 'inf'):.3f}",
         f"{group['smallest_ess_bulk']:.0f}", f"{group['smallest_ess_tail']:.0f}",
         f"{group['median_ess_bulk']:.0f}", f"{group['median_ess_bulk_per_hour']:.0f}"]
        for name, group in found["groups"].items() if group
    ]  # fmt: skip
    kept = [record for record in run.records("trace.jsonl") if not record["burnin"]]
    accepted = sum(record["accept_prob"] for record in kept) / len(kept)
    divergent = sum(record["divergent"] for record in kept)
    so_far = "" if run.finished else " so far"
    return (
        "<h2 id=chain>Diagnostics of the chain</h2>\n"
        f"<p>Chains: {found['chains']}, of {found['draws_per_chain']} samples each{so_far}; "
        f"sampled in {duration(3600 * found['hours'])}: "
        f"{found['draws_per_chain'] / found['hours']:.0f} samples an hour. "
        f"Acceptance {accepted:.2f}; {divergent} divergent transitions.</p>\n"
        + _html_table(head, body)
    )


def _runs(results: Results) -> str:
    head = ["run", "state", "time", "peak memory", "commit", "machine", "versions"]
    body = []
    for run in results.begun():
        try:
            meta = run.json("meta.json")
        except Missing as missing:
            body.append([run.kind, str(missing), *[""] * (len(head) - 2)])
            continue
        last = meta["sessions"][-1]
        commits = dict.fromkeys((s["git_commit"] or "unknown")[:7] for s in meta["sessions"])
        changed = any(s["git_uncommitted_changes"] for s in meta["sessions"])
        versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        body.append([
            run.kind, "finished" if run.finished else "begun", duration(meta["seconds"]),
            f"{meta['peak_memory'] / 1e9:.2f} GB",
            ", ".join(commits) + (" and changes" if changed else ""),
            f"{last['processor']}, {last['device']}, {last['threads']} threads",
            f"Python {last['python']}, {versions}",
        ])  # fmt: skip
    return "<h2 id=runs>Runs: times, machines, versions</h2>\n" + _html_table(head, body)


def _html_table(head: Iterable[str], body: Iterable[list[str]], escape: bool = True) -> str:
    """A table that scrolls by itself where it is wider than the page."""

    def cell(content: str) -> str:
        text = _text(content) if escape else content
        return f"<td class=long>{text}</td>" if len(content) > LONG_CELL else f"<td>{text}</td>"

    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in body)
    return (
        f"<div class=scroll tabindex=0><table class=numbers><thead><tr>{cells}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _text(value) -> str:
    return html.escape(str(value))
