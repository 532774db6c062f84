"""What to do stands in the remedy of a finding: its sentence says what was found, once."""

from __future__ import annotations

import pytest

from flowcheck.findings.catalog.chain_health import NO_LINK
from flowcheck.findings.catalog.how_chains_end import NO_BASE, NO_BASE_AFTER_JOIN, NO_FRAME
from flowcheck.findings.catalog.job_restarts import GRADIENTS_NOT_KEPT, STATE_NOT_KNOWN
from flowcheck.findings.finding import Entry

MENDED = (NO_LINK, NO_BASE, NO_BASE_AFTER_JOIN, NO_FRAME, GRADIENTS_NOT_KEPT, STATE_NOT_KNOWN)


@pytest.mark.parametrize("entry", MENDED, ids=lambda one: one.code)
def test_a_sentence_has_no_command_and_no_advice(entry: Entry) -> None:
    assert entry.remedy
    assert not [part for part in ("`", "check", "wait for") if part in entry.sentence]


def test_the_setting_for_gradients_is_named_once() -> None:
    finding = GRADIENTS_NOT_KEPT(step=6, first=4, last=6)
    said = " ".join((str(finding), finding.cause, finding.remedy))
    assert said.count("taken_steps") == 1
