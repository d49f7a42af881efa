"""What a paper is to this repository: steps to run, claims to judge, and sections of the report.

Each paper is a folder in papers/ that defines one `Paper`; papers/__init__.py lists them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from utils.report.figures import styled
from utils.report.results import DAMAGED, Missing, Results, RunResult, or_none, why_not
from utils.report.tables import Table

from matplotlib.figure import Figure

# ---- what to run


@dataclass(frozen=True)
class Plan:
    """A script's config in a preset, and the seconds it takes on two idle cores of a Zen 5."""

    config: str
    seconds: float


@dataclass(frozen=True)
class Step:
    """A script to run, its config in each preset, and the runs it is made from."""

    script: str
    kind: str  # of its run, by which other steps and results know it
    plans: dict[str, Plan]  # by preset
    inputs: tuple[tuple[str, str], ...] = ()  # the script's options that take runs, and their kinds
    posteriors: tuple[str, ...] = ()  # kinds of runs that its --posteriors takes, as kind=PATH
    arguments: tuple[str, ...] = ()  # what its command line has in every preset
    dataset: str | None = None  # its own, if it does not take the one that is asked for
    prefix: str = ""  # what the run's directory begins with, if that is not the kind
    needs_gpu: bool = False  # as it would take months without one

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the kinds of runs that must be finished first."""
        return (*(kind for option, kind in self.inputs), *self.posteriors)


# ---- what to judge

HOLDS, PARTLY, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "not measured"
UNDECIDED = "no verdict"  # what was measured is too uncertain, by the paper's rule
MARKS = {  # their signs and styles
    HOLDS: ("✓", "holds"), PARTLY: ("◐", "partly"), FAILS: ("✗", "fails"),
    UNDECIDED: ("?", "unknown"), UNKNOWN: ("–", "unknown"),
}  # fmt: skip


CLEAR = 2  # standard errors from a threshold decide


def is_below(value: float, limit: float, error: float = 0.0) -> bool | None:
    """Say whether a value is below a limit; None if that is within CLEAR standard errors."""
    if abs(value - limit) < CLEAR * error:
        return None
    return value < limit


def decide(parts: Sequence[bool | None], rule: Callable[[Sequence[bool]], str]) -> str:
    """Return the mark for parts of a criterion; no verdict if it depends on one that is unknown.

    The rule must not give a worse mark if more parts are met.
    """
    best, worst = (
        rule([unknown if part is None else part for part in parts]) for unknown in (True, False)
    )
    return best if best == worst else UNDECIDED


def all_or_some(parts: Sequence[bool]) -> str:
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def all_or_half(parts: Sequence[bool]) -> str:
    return HOLDS if all(parts) else PARTLY if 2 * sum(parts) >= len(parts) else FAILS


class Finding(NamedTuple):
    """A claim's mark and the numbers behind it; `numbers` is the short form of `evidence`."""

    mark: str
    evidence: str
    numbers: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, the criterion for its mark, and the function that applies it."""

    text: str
    source: str  # where the paper says so
    criterion: str
    kinds: tuple[str, ...]  # of the runs that `judge` reads
    judge: Callable[[Results], Finding]
    in_short: dict[str, str] = field(default_factory=dict)  # by mark; empty for minor claims
    ours: bool = False  # not claimed by the paper, but a question that it leaves open
    number: str = ""  # among the paper's claims, such as "4a", by which docs refer to it

    @property
    def name(self) -> str:
        return self.judge.__name__


def claim(text: str, **fields) -> Callable[[Callable], Claim]:
    """Turn the function that judges a claim into the claim (a decorator)."""
    return lambda judge: Claim(text, judge=judge, **fields)


@dataclass(frozen=True)
class Verdict:
    """A claim and how it fares."""

    claim: Claim
    mark: str
    evidence: str
    in_short: str  # a sentence for the top of the report, or ""


def judge(claim: Claim, results: Results) -> Verdict:
    """Judge a claim; its mark is UNKNOWN if a run it needs is missing or damaged."""
    try:
        finding = claim.judge(results)
    except (Missing, *DAMAGED) as error:
        runs = [results.runs[kind] for kind in claim.kinds]
        return Verdict(claim, UNKNOWN, why_not(error, *runs), "")
    sentence = claim.in_short.get(finding.mark)
    if finding.mark == UNDECIDED and claim.in_short:
        sentence = sentence or "These runs do not decide it"
    in_short = f"{sentence}: {finding.numbers}." if sentence else ""
    return Verdict(claim, finding.mark, finding.evidence, in_short)


@dataclass(frozen=True)
class Conclusion:
    """A reader's question, advice, and the claims, of any paper, that it rests on.

    Each part of the advice is computed from the papers' results, by name; "" says nothing.
    """

    question: str
    advice: tuple[Callable[[Mapping[str, Results]], str], ...]
    claims: tuple[Claim, ...]

    def advise(self, results: Mapping[str, Results]) -> str:
        """Return the advice, without the parts whose runs are missing or damaged."""
        parts = (or_none(partial(part, results)) for part in self.advice)
        return " ".join(filter(None, parts))


# ---- what to show


@dataclass(frozen=True)
class RunFigure:
    """A figure that runs of a kind leave as <name>.png and .pdf, with its title and caption."""

    kind: str
    name: str
    title: str
    caption: str
    source: str  # the result file that it is drawn from
    draw: Callable[..., Figure]

    def save(self, run, *arguments) -> None:
        """Draw the figure from the run's result file and save it in the run."""
        run.save_figure(self.name, self.draw(run.path(self.source), *arguments))


def figure(kind: str, source: str, title: str, caption: str) -> Callable[[Callable], RunFigure]:
    """Turn the function that draws a figure into the figure, named after it (a decorator)."""
    return lambda draw: RunFigure(kind, draw.__name__, title, caption, source, styled(draw))


@dataclass(frozen=True)
class RunTables:
    """Tables and paragraphs of the report about runs of a kind."""

    kind: str
    write: Callable[[Results], list[Table | str]]

    def contents(self, results: Results) -> list[Table | str]:
        """Return what is written, or why it cannot be."""
        try:
            return self.write(results)
        except (Missing, *DAMAGED) as error:
            return [why_not(error, results.runs[self.kind])]


@dataclass(frozen=True)
class Section:
    """A section of the report."""

    anchor: str  # its address within the paper's part of the page
    short: str  # its name in the list of sections
    title: str
    parts: tuple[RunFigure | RunTables, ...]


# ---- all of it


@dataclass(frozen=True)
class Paper:
    """Everything that is specific to one paper."""

    name: str  # of its folder
    title: str
    authors: str  # and year
    url: str
    heading: str  # a few words for the top of the page
    introduction: str  # a paragraph: what the paper is about
    terms: dict[str, str]  # words a reader needs, explained
    steps: tuple[Step, ...]  # in order: a step needs only earlier ones
    artefacts: dict[str, tuple[str, ...]]  # kinds of the runs that each is made from
    claims: tuple[Claim, ...]
    sections: tuple[Section, ...]
    rule: str = ""  # when a claim has no verdict
    cautions: tuple[Callable[[Results], str], ...] = ()  # each a sentence to read first, or ""
    numbers: dict[str, Callable[[Results], object]] = field(default_factory=dict)  # for programs

    def steps_for(self, artefacts: Iterable[str]) -> list[Step]:
        """Return the steps that make the artefacts, with all they need, in order."""
        known = {step.kind: (step.kind,) for step in self.steps} | self.artefacts
        wanted = {kind for name in artefacts for kind in known.get(name, ())}
        for step in reversed(self.steps):  # a step needs only earlier ones
            if step.kind in wanted:
                wanted |= set(step.needs)
        return [step for step in self.steps if step.kind in wanted]

    @property
    def parts(self) -> list[RunFigure | RunTables]:
        return [part for section in self.sections for part in section.parts]

    @property
    def figures(self) -> list[RunFigure]:
        return [part for part in self.parts if isinstance(part, RunFigure)]


# ---- at the end of a run


def conclude(run, paper: Paper, summary: dict, records: dict) -> None:
    """Finish a run, and save and print what the paper's report will show of it.

    These are figures, tables, and the claims that no other run is needed for. `records` are what
    wandb shows as tables, by name.
    """
    for each in paper.figures:
        if each.kind == run.kind:
            each.save(run)
    for name, rows in records.items():
        run.log_records(name, rows)
    run.finish(summary)
    results = Results("", run.config.dataset, {run.kind: RunResult(run.kind, run.directory)})
    for part in paper.parts:
        if part.kind == run.kind and isinstance(part, RunTables):
            for content in part.contents(results):
                content.print() if isinstance(content, Table) else print(f"\n{content}")
    for verdict in (judge(each, results) for each in paper.claims if each.kinds == (run.kind,)):
        print(f"\n{verdict.claim.text}\n{verdict.mark}: {verdict.evidence}")
    print(f"Saved in {run.directory}")
