"""What a report says first: a sentence for every verdict on the claims that come first."""

from papers.compact.claims import CLAIMS, FAILS, HOLDS, PARTLY, UNKNOWN, Verdict
from papers.compact.findings import IN_SHORT, first_findings, in_short

import pytest


def verdicts(mark: str) -> list[Verdict]:
    return [Verdict(claim, mark, "1.234 ± 0.1", "1 < 2") for claim in CLAIMS]


def test_there_are_sentences_for_every_mark_of_claims_that_are_judged():
    assert IN_SHORT.keys() < {claim.judge for claim in CLAIMS}
    for sentences in IN_SHORT.values():
        assert sentences.keys() == {HOLDS, PARTLY, FAILS}
        assert len(set(sentences.values())) == 3


@pytest.mark.parametrize("mark", [HOLDS, PARTLY, FAILS])
def test_the_mark_is_followed_by_what_it_means_and_the_number(mark):
    page = first_findings(verdicts(mark))
    for judge, sentences in IN_SHORT.items():
        assert f"{sentences[mark]}: 1 &lt; 2.</span></li>".replace("'", "&#x27;") in page
        (verdict,) = (v for v in verdicts(mark) if v.claim.judge is judge)
        assert in_short(verdict) == f"{sentences[mark]}: 1 < 2."
    assert page.split("<ul class=short>")[1].count(f"</span> {mark}</strong>") == len(IN_SHORT)


def test_what_is_not_measured_is_not_told_in_short():
    assert "<li>" not in first_findings(verdicts(UNKNOWN))
