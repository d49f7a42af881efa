"""Conclusions across papers: their claims are those of the papers, and all can be told in short."""

from papers import CONCLUSIONS, PAPERS


def test_every_conclusion_rests_on_claims_that_are_judged():
    judged = [claim for paper in PAPERS for claim in paper.claims]
    for conclusion in CONCLUSIONS:
        assert conclusion.question.endswith("?")
        for claim in conclusion.claims:
            assert claim in judged
            assert len(claim.in_short) == 3, claim.text
