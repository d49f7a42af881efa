"""The top of the report: the words it needs, and in plain ones what was found, claim by claim."""

from html import escape

from papers.compact.claims import (
    FAILS,
    HOLDS,
    PARTLY,
    UNKNOWN,
    Verdict,
    barrier_grows,
    barrier_vanishes,
    hmc_std_prunes,
    rebasin_gives_meaning,
    weights_compare,
)

MARKS = {HOLDS: ("✓", "holds"), PARTLY: ("◐", "partly"), FAILS: ("✗", "fails"),
         UNKNOWN: ("–", "unknown")}  # fmt: skip
TERMS = {
    "HMC, ensemble, VI": "three ways to know which weights fit the data: networks drawn from the "
    "posterior by Hamiltonian Monte Carlo, networks trained apart, and a Gaussian fitted by "
    "variational inference.",
    "μ and σ": "mean and standard deviation of one weight over all networks of a method.",
    "Rebasin": "reorders the hidden units of a network to match those of one reference network.",
    "q_d, q_r": "the Gaussian with the μ and σ of every weight, of the networks as they are "
    "(direct) and after rebasin; μ_d and μ_r are also networks by themselves.",
    "Agreement": "the share of test images to which two predictions give the same label.",
    "Total variation (TV)": "how far the probabilities of two predictions are apart: 0 is the "
    "same, 1 has nothing in common.",
    "NoT": "the number of transpositions, that is how many swaps of two units a reordering takes.",
    "Dead pixels": "zero in all training images, so that only the prior says anything of their "
    "weights.",
    "R-hat, ESS": "how far parts of a chain differ, 1 where they do not; and how many independent "
    "samples those of a chain are worth.",
    "Barrier": "how far the loss (cross-entropy, in nats) rises on the straight line between two "
    "networks above the losses of these two.",
}
INTRODUCTION = (
    "<p>The hidden units of a neural network can change places, with their weights, and it still "
    "computes the same. So the posterior, the probability of weights given the data, has each "
    "network in a huge number of copies, and averages over them mix up different units: mean and "
    "standard deviation of a weight say nothing. The paper brings the units of all networks into "
    "one order first, and asks what these two say then.</p>\n<dl class=terms>"
    + "".join(f"<div><dt>{name}</dt> <dd>{told}</dd></div>" for name, told in TERMS.items())
    + "</dl>"
)
# Of the claims that come first: what it means that they hold, hold in part, or do not.
IN_SHORT = {
    rebasin_gives_meaning: {
        HOLDS: "Rebasin turns the meaningless μ and σ of the weights into a summary of the "
        "posterior",
        PARTLY: "Rebasin makes the μ and σ of the weights a better summary of the posterior, but "
        "only a little",
        FAILS: "Rebasin does not make the μ and σ of the weights a better summary of the posterior",
    },
    barrier_vanishes: {
        HOLDS: "Two networks trained apart have a barrier between them, and rebasin takes it away",
        PARTLY: "Rebasin takes most of the barrier between two networks trained apart away, but "
        "not all of it throughout training",
        FAILS: "Rebasin does not take the barrier between two networks trained apart away",
    },
    barrier_grows: {
        HOLDS: "Two networks that begin as copies of each other with some units swapped have a "
        "barrier between them after training, the higher the more swaps there were",
        PARTLY: "Two networks that begin as copies of each other with some units swapped have a "
        "barrier between them after training, which grows with the swaps only roughly",
        FAILS: "After training, the barrier between two networks that began as copies of each "
        "other with some units swapped has little to do with the number of swaps",
    },
    weights_compare: {
        HOLDS: "After rebasin the weights of HMC, ensemble and VI can be compared one by one",
        PARTLY: "Rebasin makes the weights of HMC, ensemble and VI comparable in part only",
        FAILS: "Rebasin does not make the weights of HMC, ensemble and VI comparable",
    },
    hmc_std_prunes: {
        HOLDS: "HMC's σ tells which weights of an ordinary network can be set to zero",
        PARTLY: "HMC's σ tells a little about which weights of an ordinary network can be set to "
        "zero",
        FAILS: "HMC's σ is not clearly better than chance at telling which weights of an ordinary "
        "network can be set to zero",
    },
}


def in_short(verdict: Verdict) -> str:
    """A sentence for everybody, of the claims that come first; empty of others."""
    told = IN_SHORT.get(verdict.claim.judge, {}).get(verdict.mark)
    return f"{told}: {verdict.in_short}." if told else ""


def first_findings(verdicts: list[Verdict]) -> str:
    """What the marks mean, and the claims that come first."""
    items = "".join(
        f"<li>{_marked(verdict.mark)} <span>{escape(in_short(verdict))}</span></li>"
        for verdict in verdicts
        if in_short(verdict)
    )
    legend = ", ".join(_marked(mark) for mark in MARKS)
    return (
        "<h2 id=findings>Findings</h2>\n<p class=soft>A mark says how a claim of the paper fares "
        f"here: {legend}. Where one ends and the next begins is a rule of ours, which the table "
        "states; the paper gives none.</p>"
        + (f"\n<h3>In short</h3>\n<ul class=short>{items}</ul>" if items else "")
    )


def all_findings(verdicts: list[Verdict]) -> str:
    papers = [verdict for verdict in verdicts if not verdict.claim.ours]
    ours = [verdict for verdict in verdicts if verdict.claim.ours]
    marks = [verdict.mark for verdict in papers]
    counts = ", ".join(f"{mark}: {marks.count(mark)}" for mark in MARKS if mark in marks)
    return (
        "<h3>What the paper says, and what our numbers say</h3>\n"
        f"<p>{len(papers)} claims ({counts}).</p>\n{_table(papers)}\n"
        f"<h3>What the paper leaves open</h3>\n{_table(ours)}"
    )


def _table(verdicts: list[Verdict]) -> str:
    """Those that nothing has been measured for come last."""
    rows = "".join(
        f"<tr><td>{_marked(verdict.mark)}</td><td>{escape(verdict.claim.text)}<br>"
        f"<span class=soft>{escape(verdict.claim.where)}; {escape(verdict.claim.rule)}</span></td>"
        f"<td>{escape(verdict.evidence)}</td></tr>"
        for verdict in sorted(verdicts, key=lambda verdict: verdict.mark == UNKNOWN)
    )
    return (
        "<table class=claims><thead><tr><th></th><th>claim, where, and the rule of its mark</th>"
        f"<th>evidence</th></tr></thead>\n<tbody>{rows}</tbody></table>"
    )


def _marked(mark: str) -> str:
    sign, name = MARKS[mark]
    return f"<strong class={name}><span class=mark>{sign}</span> {mark}</strong>"
