"""Facts as codes: what is compared, stored and shown."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcheck.errors import ConfigError, CoreError, RingError, StateError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.refused_settings import AT_LEAST
from flowcheck.findings.catalog.trainer_hook import HOOK_UNREACHABLE
from flowcheck.findings.finding import Entry, Finding, entries

LOST = Entry("test.lost", "step {step} lacks {bytes:,} bytes: {why}", remedy="look")
WHY = Entry("test.why", "it rained")
FITS = Entry("test.fits", "the base fits", until_audit=True)
ALL = Entry("test.all", "{one}", between=" and ")
TOOK = Entry("test.took", "it took {seconds:.1f} s", also=("host",))


def back(finding: Finding) -> Finding:
    return msgspec.json.decode(msgspec.json.encode(finding), type=Finding)


def test_a_finding_is_its_code_and_arguments() -> None:
    finding = LOST(3, 40000, WHY())
    assert str(finding) == "step 3 lacks 40,000 bytes: it rained"
    assert finding == LOST(step=3, bytes=40000, why=WHY()) != LOST(4, 40000, WHY())
    assert finding.is_any_of(WHY, LOST) and not finding.is_any_of(WHY)
    assert (finding.remedy, WHY().remedy) == ("look", "")
    assert {finding, LOST(3, 40000, WHY())} == {finding}
    assert finding != "step 3 lacks 40,000 bytes: it rained"


def test_a_wrapper_has_the_remedies_of_what_it_wraps() -> None:
    mend = Entry("test.mend", "broken", cause="It fell.", remedy="Mend {it}.", also=("it",))
    save = Entry("test.save", "not saved", remedy="Make room.")
    both = Entry("test.both", "{failure}; and {then}")
    each = Entry("test.each", "{reasons}")
    found = both(failure=mend(it=["a", "b"]), then=save())
    assert (found.remedy, found.cause) == ("Mend a, b. Make room.", "It fell.")
    assert both(failure=save(), then=save()).remedy == "Make room."
    assert each([WHY(), save(), mend(it=1)]).remedy == "Make room."
    assert back(found).cause == "It fell." and WHY().cause == ""
    told = msgspec.json.decode(msgspec.json.encode(found))
    assert (told["cause"], told["remedy"]) == ("It fell.", "Mend a, b. Make room.")
    assert "cause" not in msgspec.json.decode(msgspec.json.encode(save()))


def test_json_holds_code_arguments_and_sentence_and_gives_them_back() -> None:
    why = {"code": "test.why", "arguments": {}, "until_audit": False, "sentence": "it rained"}
    finding = LOST(3, 40000, (WHY(), WHY()))
    assert msgspec.json.decode(msgspec.json.encode(finding)) == {
        "code": "test.lost",
        "arguments": {"step": 3, "bytes": 40000, "why": [why, why]},
        "until_audit": False,
        "sentence": "step 3 lacks 40,000 bytes: it rained; it rained",
        "remedy": "look",
    }
    again = back(finding)
    assert (again, str(again), hash(again)) == (finding, str(finding), hash(finding))


def test_between_what_a_list_has_stands_what_the_entry_says() -> None:
    assert str(ALL([WHY(), WHY()])) == "it rained and it rained"
    assert str(LOST(1, 2, [WHY(), WHY()])) == "step 1 lacks 2 bytes: it rained; it rained"
    assert (str(ALL([1, 2])), str(LOST(1, 2, [1, 2]))) == ("1 and 2", "step 1 lacks 2 bytes: 1, 2")
    assert back(ALL([WHY(), WHY()])) == ALL([WHY(), WHY()])


def test_what_an_audit_would_show_says_so_and_is_another_fact_than_what_is_known() -> None:
    assert str(FITS()) == "the base fits (no audit has shown it yet)"
    doubted = WHY().until_audited()
    assert (str(doubted), doubted == WHY()) == ("it rained (no audit has shown it yet)", False)
    assert back(doubted) == doubted and back(doubted).until_audit


def test_a_code_of_another_version_is_shown_as_that_version_said_it() -> None:
    later = Finding("later.code", {"n": 1}, True, "something new")
    assert (str(later), later.until_audit, later.remedy) == ("something new", True, "")
    stored = b'{"code":"later.code","sentence":"new","cause":"It is.","remedy":"Wait."}'
    read = msgspec.json.decode(stored, type=Finding)
    assert (read.cause, read.remedy, later.cause) == ("It is.", "Wait.", "")
    assert str(Finding("test.lost", {"step": 3}, False, "step 3 is gone")) == "step 3 is gone"
    odd = Finding("test.took", {"seconds": "long", "host": None})
    assert str(odd) == "it took long s", "whatever its arguments are, it is shown"


@given(
    st.one_of(
        st.integers(), st.floats(), st.text(), st.booleans(), st.none(),
        st.floats(width=32).map(np.float32), st.integers(0, 9).map(np.int64),
        st.lists(st.one_of(st.integers(), st.text())), st.just(Path("/a\udcff")),
        st.lists(st.floats().map(lambda _: WHY())),
    )
)  # fmt: skip
def test_whatever_is_its_argument_comes_back_equal_and_is_shown_the_same(value: Any) -> None:
    finding = LOST(step=1, bytes=2, why=value)
    assert back(finding) == finding
    assert str(back(finding)) == str(finding)
    assert hash(back(finding)) == hash(finding)


def test_numbers_that_are_none_are_shown() -> None:
    assert str(TOOK(seconds=math.nan, host="a")) == "it took nan s"
    assert str(TOOK(seconds=np.float64(1.25), host="a")) == "it took 1.2 s"


@pytest.mark.parametrize(
    "whole",
    [(1 << 64) - 1, 1 << 64, -(1 << 63) - 1, 1 << 40_000],
    ids=lambda whole: f"{whole.bit_length()} bits",
)
def test_a_number_that_json_cannot_hold_is_kept_as_hexadecimal_text(whole: int) -> None:
    finding = LOST(step=whole, bytes=whole, why=WHY())
    assert back(finding) == finding
    assert str(back(finding)) == str(finding)
    assert finding.arguments["step"] == (whole if whole == (1 << 64) - 1 else hex(whole)[:60])


def test_arguments_are_those_of_the_sentence() -> None:
    for wrong in ((), (1, 2), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            LOST(*wrong)
    with pytest.raises(TypeError):
        LOST(1, 2, reason=3)
    for odd in (object(), b"x", {}, [[1]], np.zeros(3)):
        with pytest.raises(TypeError):
            LOST(1, 2, odd)
    with pytest.raises(ValueError):
        Entry("test.why", "another")


def test_errors_have_findings() -> None:
    assert StateError(WHY()).finding == WHY() and str(StateError(WHY())) == "it rained"
    refused = ConfigError("ring.slots", 0, AT_LEAST(2))
    assert (refused.finding.code, str(refused)) == (
        "setting.refused",
        "ring.slots = 0: must be 2 or more",
    )
    assert refused.finding.arguments["right"] == AT_LEAST(2)
    outside = CoreError(28, "no room").finding
    assert (outside.code, outside.arguments["kind"], str(outside)) == (
        "error.text",
        "core",
        "no room",
    )
    of_us = RingError(28, WHY())
    assert (of_us.finding, str(of_us), of_us.errno) == (WHY(), "it rained", 28)


def test_sentences_of_earlier_files_are_findings() -> None:
    known, doubted = map(earlier_finding, ("so it was", "so it was (no audit has shown it yet)"))
    assert (str(known), known.until_audit) == ("so it was", False)
    assert (str(doubted), doubted.until_audit) == ("so it was (no audit has shown it yet)", True)


def test_every_code_of_the_catalogue_names_its_subject_and_fact() -> None:
    for code, entry in entries().items():
        assert re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", code), code
        assert entry.sentence.strip() == entry.sentence != "", code
        assert not any(name.isdigit() for name in entry.names), f"{code}: arguments have names"


def test_equal_findings_are_not_unequal() -> None:
    one, other = (HOOK_UNREACHABLE(address="a:1", error="refused") for _ in range(2))
    assert one == other and not one != other  # noqa: SIM202
    assert one != HOOK_UNREACHABLE(address="a:2", error="refused")
