"""The page of failures has the table of the catalogue: each sentence is one that FlowCheck says."""

import re
from pathlib import Path

import pytest

from flowcheck.findings import failures_page
from flowcheck.findings.failures_page import (
    FULL_PAGE,
    PAGE,
    filled,
    full_page,
    quoted,
    sections,
    with_ellipses,
)
from flowcheck.findings.finding import Entry, entries
from flowcheck.plane.shared_memory.packet_counters import FLOW_TABLE_FULL, LOSS_COUNTERS, VERDICTS

PAGE_JS = Path(__file__).resolve().parents[2] / "flowcheck/ops/watch/page"
SETTINGS = {"data_blocks", "gradient_log", "parity_blocks", "size_bytes", "slot_bytes"}
ON_THE_PAGE = [entry for entry in entries().values() if entry.section]
HANDWRITTEN = re.compile(r"`(The watcher [^`…]+)")


def test_the_page_is_what_the_catalogue_makes() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "python -m flowcheck.findings.failures_page writes it anew"
    assert FULL_PAGE.read_text() == full_page(), "and this one"
    assert len(ON_THE_PAGE) >= 37


def test_every_entry_that_has_a_remedy_is_on_one_of_the_pages() -> None:
    frequent, rest = PAGE.read_text(), FULL_PAGE.read_text()
    for entry in entries().values():
        if entry.remedy and not entry.code.startswith("test."):
            rows = (frequent if entry.section else rest).splitlines()
            said = [row for row in rows if quoted(entry) in row]
            assert any(row.endswith(f"| {with_ellipses(entry.remedy)} |") for row in said), (
                entry.code
            )


def test_every_section_of_an_entry_is_on_the_page_once() -> None:
    there = sections(PAGE.read_text())
    assert sorted(there) == sorted({entry.section for entry in ON_THE_PAGE})


@pytest.mark.parametrize("entry", ON_THE_PAGE, ids=lambda entry: entry.code)
def test_every_entry_on_the_page_says_what_it_means_and_what_to_do(entry: Entry) -> None:
    assert entry.cause and entry.remedy
    assert not set("|\n") & set(entry.sentence + entry.cause + entry.remedy), "a row of a table"
    assert "``" not in entry.sentence, "it stands between two backticks there"


def test_a_changed_sentence_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page, (entry, *_) = PAGE.read_text(), ON_THE_PAGE
    monkeypatch.setattr(entry, "sentence", "{{a}} of {some:,} is {b.c}")
    assert f"| `{{a}} of … is …` | {entry.cause} | {with_ellipses(entry.remedy)} |" in filled(page)
    monkeypatch.setattr(entry, "section", "none_there")
    with pytest.raises(ValueError, match="nowhere"):
        failures_page.table("nowhere")


def test_what_the_page_quotes_of_the_browser_is_said_by_its_script() -> None:
    script = "".join(path.read_text() for path in sorted(PAGE_JS.glob("*.js")))
    quoted = HANDWRITTEN.findall(PAGE.read_text())
    assert len(quoted) == 3
    assert all(sentence.strip() in script for sentence in quoted), quoted


def test_every_counter_that_the_page_names_is_one() -> None:
    words = set(re.findall(r"`([a-z]+_[a-z_]+)`", PAGE.read_text()))
    known = set(LOSS_COUNTERS) | set(VERDICTS) | {FLOW_TABLE_FULL}
    assert {"ring_full_frames", "icrc_bad"} <= words
    assert words - known <= SETTINGS
