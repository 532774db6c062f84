"""Facts as codes: what is compared, stored and shown."""

import importlib
import pkgutil
import re

import msgspec
import pytest

import flowcheck.findings
from flowcheck.findings.finding import Entry, Finding, entries

LOST = Entry(
    "test.lost", "step {step} lacks {bytes:,} bytes: {why}", remedy="look", until_audit=True
)
WHY = Entry("test.why", "it rained")


def test_a_finding_is_its_code_and_arguments() -> None:
    finding = LOST(3, 40000, WHY())
    assert str(finding) == "step 3 lacks 40,000 bytes: it rained"
    assert finding == LOST(step=3, bytes=40000, why=WHY()) != LOST(4, 40000, WHY())
    assert finding.of(WHY, LOST) and not finding.of(WHY)
    assert (finding.until_audit, finding.remedy) == (True, "look")
    assert {finding, LOST(3, 40000, WHY())} == {finding}
    assert finding != "step 3 lacks 40,000 bytes: it rained"


def test_json_holds_code_arguments_and_sentence_and_gives_them_back() -> None:
    text = msgspec.json.encode(LOST(3, 40000, (WHY(), WHY())))
    assert msgspec.json.decode(text) == {
        "code": "test.lost",
        "arguments": {
            "step": 3,
            "bytes": 40000,
            "why": [{"code": "test.why", "arguments": {}, "sentence": "it rained"}] * 2,
        },
        "sentence": "step 3 lacks 40,000 bytes: it rained; it rained",
    }
    again = msgspec.json.decode(text, type=Finding)
    assert (again, str(again)) == (LOST(3, 40000, (WHY(), WHY())), str(again))
    assert hash(again) == hash(LOST(3, 40000, (WHY(), WHY())))


def test_a_code_of_another_version_is_shown_as_that_version_said_it() -> None:
    later = Finding("later.code", {"n": 1}, "something new")
    assert (str(later), later.until_audit, later.remedy) == ("something new", False, "")
    changed = Finding("test.lost", {"step": 3}, "step 3 is gone")
    assert str(changed) == "step 3 is gone"


def test_arguments_are_those_of_the_sentence() -> None:
    for wrong in ((), (1, 2), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            LOST(*wrong)
    with pytest.raises(TypeError):
        LOST(1, 2, reason=3)
    with pytest.raises(TypeError):
        LOST(1, 2, object())
    with pytest.raises(ValueError):
        Entry("test.why", "another")


def test_every_code_of_the_catalogue_names_its_subject_and_fact() -> None:
    for module in pkgutil.iter_modules(flowcheck.findings.__path__, "flowcheck.findings."):
        importlib.import_module(module.name)
    for code, entry in entries().items():
        assert re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", code), code
        assert entry.sentence.strip() == entry.sentence != "", code
        assert not any(name.isdigit() for name in entry.names), f"{code}: arguments have names"
