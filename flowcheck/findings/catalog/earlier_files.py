"""Findings of files that an earlier version of FlowCheck wrote, which hold sentences."""

from __future__ import annotations

from flowcheck.findings.finding import UNTIL_AUDIT, Entry, Finding

EARLIER_SENTENCE = Entry("earlier.sentence", "{sentence}")


def earlier_finding(sentence: str) -> Finding:
    """The finding of a sentence as an earlier file has it: the one place that looks at words."""
    found = EARLIER_SENTENCE(sentence.removesuffix(UNTIL_AUDIT))
    return found.until_audited() if sentence.endswith(UNTIL_AUDIT) else found


def finding_of(told: Finding | str) -> Finding:
    """What a file holds, as a finding: an earlier version wrote the sentence alone."""
    return told if isinstance(told, Finding) else earlier_finding(told)
