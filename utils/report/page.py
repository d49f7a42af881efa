"""The report of a batch of runs: one HTML file that needs nothing but itself, and its numbers.

`write_report` reads run directories only, so a report can be made again at any time, of whatever
is there: parts whose run is missing or damaged say so.

notes.txt beside the report, written by hand, is shown if its first line, `HMC run: <wandb_id>`,
names the HMC run of these results as its meta.json and numbers.json do.
"""

import base64
import html
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path

from papers.compact.claims import DAMAGED, Verdict, judge_all, why_not
from papers.compact.findings import INTRODUCTION, all_findings, first_findings, in_short
from papers.compact.pictures import SECTIONS, Picture, Section, read_images, write_images
from utils.evaluation.columns import COLUMNS, ROWS
from utils.evaluation.diagnostics import LARGEST_RHAT, energy_balance, slow_groups
from utils.report.results import Missing, Results, RunResult
from utils.report.tables import (
    REFERENCE_HEADINGS,
    number,
    paper_table1,
    reference_rows,
    sparsity_table,
    summary_lines,
)
from utils.runs.files import save_json, write_atomically
from utils.runs.progress import duration

import yaml
from PIL import Image

STYLE_SHEET = Path(__file__).with_name("report.css")
PAPER = "A Compact Representation for Bayesian Neural Networks By Removing Permutation Symmetry"
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
    "notes": "Differences",
    "table1": "Table 1",
    **{section.anchor: section.short for section in SECTIONS},
    "checks": "Checks",
    "chain": "Diagnostics of the chain",
    "runs": "Runs",
}
LEGEND = (
    "<p class=soft>q_d, q_r: networks drawn from these Gaussians; μ: the one network at the mean. "
    "“To mean”: rebased to where the samples' own mean comes to rest. “Low rank”: a "
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
    text = page(results, verdicts, images, notes_about(results, directory / "notes.txt"))
    path = directory / "report.html"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def notes_about(results: Results, path: Path) -> str:
    """What was written by hand about these very runs; notes about others are left out."""
    if not path.exists():
        return ""
    first_line, _, notes = path.read_text().partition("\n")
    run = _or_none(lambda: results.runs["HMC"].json("meta.json")["wandb_id"])
    if run and first_line.strip() == f"HMC run: {run}":
        return notes
    wanted = f"“HMC run: {run}”" if run else "the id of an HMC run, and none is here"
    print(
        f"{path} is left out of the report: it is about other runs than these, for its first line "
        f"is not {wanted}."
    )
    return ""


def numbers_of(results: Results, verdicts: list[Verdict]) -> dict:
    """Everything the report states, for programs to read."""
    return {
        "preset": results.preset,
        "dataset": results.dataset,
        "claims": [
            {"claim": v.claim.text, "where": v.claim.where, "rule": v.claim.rule, "mark": v.mark,
             "in_short": in_short(v), "evidence": v.evidence, "of_the_paper": not v.claim.ours}
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
        "wandb_id": meta.get("wandb_id"),
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
    except (Missing, *DAMAGED):
        return None


# ---- the page


def page(
    results: Results, verdicts: list[Verdict], images: dict[Picture, bytes], notes: str
) -> str:
    """The whole HTML document."""
    evaluation, chain = results.runs["eval"], results.runs["HMC"]
    sections = [
        _heading(results, notes),
        first_findings(verdicts),
        _or_why_not(partial(_slow_mixing, results), chain),
        all_findings(verdicts),
        _notes(notes),
        "<h2 id=table1>Table 1: posteriors as functions</h2>",
        _or_why_not(partial(_tables, results), evaluation),
        *(_pictures(section, results, images) for section in SECTIONS),
        "<h2 id=checks>Checks, and what the paper does not tell</h2>",
        _or_why_not(partial(_evaluation, results), evaluation),
        "<h2 id=chain>Diagnostics of the chain</h2>",
        _or_why_not(partial(_chain, results), chain),
        _runs(results),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(_title(results))}</title>\n<style>\n{STYLE_SHEET.read_text()}</style>\n"
        "</head>\n<body>\n" + "\n".join(filter(None, sections)) + "\n</body>\n</html>\n"
    )


def _or_why_not(write: Callable[[], str], run: RunResult) -> str:
    """What is written of a run's results, or why it cannot be."""
    try:
        return write()
    except (Missing, *DAMAGED) as error:
        return f"<p>{_text(why_not(error, run))}</p>"


def _title(results: Results) -> str:
    return f"Compact BNN posterior: {results.preset} on {results.dataset}"


def _heading(results: Results, notes: str) -> str:
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
        _navigation([name for name in PLACES if name != "notes" or notes.strip()]),
        INTRODUCTION,
        quick if results.preset == "quick" else "",
        f"<p><strong>Not finished: {_text(', '.join(map(_how_far, running)))}.</strong></p>"
        if running
        else "",
        *(_outdated(results, kind) for kind in results.runs),
    ]  # fmt: skip
    return "\n".join(filter(None, parts))


def _navigation(places: list[str]) -> str:
    links = " ".join(f"<a href=#{name}>{_text(PLACES[name])}</a>" for name in places)
    return f"<nav>{links}</nav>"


def _outdated(results: Results, kind: str) -> str:
    told = results.outdated(kind)
    return f"<p><strong>{_text(told)}</strong></p>" if told else ""


def _how_far(run: RunResult) -> str:
    """An unfinished run, and of chains how much of them could be evaluated."""
    try:
        layout = run.json("chains.json")
        done, whole = layout["stored_per_chain"], layout["samples_per_chain"]
    except (Missing, *DAMAGED):
        return run.kind
    return f"{run.kind} ({done} of {whole} samples of a chain)"


def _slow_mixing(results: Results) -> str:
    """What everything that comes from the chain has to be read with."""
    try:
        groups = results.runs["HMC"].json("diagnostics.json")["groups"]
    except Missing:
        return ""
    slow = slow_groups(groups)
    if not slow:
        return ""
    return (
        f"<p><strong>The chain has not mixed in every respect:</strong> R-hat is above "
        f"{LARGEST_RHAT} for {_text(', '.join(slow))}. A longer chain may move what rests on "
        "them; see <a href=#chain>its diagnostics</a>.</p>"
    )


def _notes(notes: str) -> str:
    """Paragraphs that were written for these results by hand."""
    if not notes.strip():
        return ""
    paragraphs = "\n".join(f"<p>{_text(part)}</p>" for part in notes.strip().split("\n\n"))
    return f"<h2 id=notes>Differences from the paper, and what to make of them</h2>\n{paragraphs}"


def _tables(results: Results) -> str:
    table, errors = results.table, results.errors
    paper, beside = paper_table1(results.dataset), ""
    if paper:
        smaller = results.preset == "quick"
        of = ", of a larger network and all the data," if smaller else ""
        beside = f"; the paper's value{of} below each"
    return "\n".join([
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
            damaged = (run.directory / f"{picture.name}.png").exists()
            lacking.append(f"{picture.title} ({run.directory.name}{', damaged' * damaged})")
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
        parts.append("<h3>Share of weights that are zero when this much accuracy is lost</h3>")
        parts.append(_or_why_not(partial(_sparsity, results), results.runs["eval_pruning"]))
    return "\n".join(parts)


def _command(run: RunResult) -> str:
    """How a run was begun, with its config behind a click."""

    def write() -> str:
        command = run.json("meta.json")["sessions"][0]["command"]
        return (
            f"<details><summary>command and config of {_text(run.directory.name)}</summary>"
            f"<pre>{_text(_plain(command))}</pre>"
            f"<pre>{_text(yaml.safe_dump(run.config, sort_keys=False))}</pre></details>"
        )

    return _or_why_not(write, run)


def _plain(command: str) -> str:
    """Without --resume, which reproduce.py gives by habit."""
    return shlex.join(word for word in shlex.split(command) if word != "--resume")


def _sparsity(results: Results) -> str:
    return (
        "<p class=soft>“alive” counts only weights that are not behind dead pixels.</p>\n"
        + _html_table(*sparsity_table(results.pruning))
    )


def _evaluation(results: Results) -> str:
    """What only this repository tells: checks, other references, the null."""
    diagnostics = results.diagnostics
    lines = "".join(f"<li>{_text(line)}</li>" for line in summary_lines(diagnostics))
    return (
        f"<ul>{lines}</ul>\n<h3>q_r by the choice of reference, and of networks that know nothing "
        f"of the data</h3>\n<p class=soft>{diagnostics['study_samples']} other samples, matched "
        f"on {diagnostics['study_images']} images; “with” tells correlations over weights. The "
        "last row rebases draws from the prior to HMC's reference: what it reaches is the work of "
        "the alignment alone.</p>\n" + _html_table(REFERENCE_HEADINGS, reference_rows(diagnostics))
    )


def _chain(results: Results) -> str:
    run = results.runs["HMC"]
    found = run.json("diagnostics.json")
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
    balance, error = energy_balance([record["delta_energy"] for record in kept])
    so_far = "" if run.finished else " so far"
    return (
        f"<p>Chains: {found['chains']}, of {found['draws_per_chain']} samples each{so_far}; "
        f"sampled in {duration(3600 * found['hours'])}: "
        f"{found['chains'] * found['draws_per_chain'] / found['hours']:.0f} samples an hour. "
        f"Acceptance {accepted:.2f}; {divergent} divergent transitions. "
        f"Mean of exp(−ΔH) over all proposals: {balance:.3f} ± {error:.3f}, where exact HMC has 1."
        "</p>\n" + _html_table(head, body)
    )


def _runs(results: Results) -> str:
    head = ["run", "state", "time", "peak memory", "commit", "machine", "versions"]
    body = []
    for run in results.begun():
        try:
            body.append([run.kind, *_run_cells(run)])
        except (Missing, *DAMAGED) as error:
            body.append([run.kind, why_not(error, run), *[""] * (len(head) - 2)])
    return "<h2 id=runs>Runs: times, machines, versions</h2>\n" + _html_table(head, body)


def _run_cells(run: RunResult) -> list[str]:
    meta = run.json("meta.json")
    last = meta["sessions"][-1]
    commits = dict.fromkeys((s["git_commit"] or "unknown")[:7] for s in meta["sessions"])
    changed = any(s["git_uncommitted_changes"] for s in meta["sessions"])
    versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
    return [
        "finished" if run.finished else "begun",
        duration(meta["seconds"]),
        f"{meta['peak_memory'] / 1e9:.2f} GB",
        ", ".join(commits) + (" and changes" if changed else ""),
        f"{last['processor']}, {last['device']}, {last['threads']} threads",
        f"Python {last['python']}, {versions}",
    ]


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
