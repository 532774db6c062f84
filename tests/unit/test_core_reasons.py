"""Why C refused something: its table of reasons and the catalogue have the same rows, and each
failure of C's has the arguments of its row."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.refused_as import like, refused_as

from flowcheck._core import ffi, lib
from flowcheck.errors import CORE_REASONS, RingError, check, core_finding
from flowcheck.findings.catalog import capture_file_reasons, shared_file_reasons
from flowcheck.findings.catalog.general_errors import CORE_REFUSED
from flowcheck.findings.catalog.shared_file_reasons import (
    FILE_NOT_OPENED,
    RING_READERS_REFUSED,
    RING_SLOTS_REFUSED,
    TRUSTED_USERS_TOO_MANY,
)
from flowcheck.findings.finding import Entry

SOURCES = Path(__file__).resolve().parents[2] / "dpdk_ext"
TABLE = SOURCES / "core/fc_error_table.h"
OF_PYTHON = {"subject", "reason", "errno"}
"""Arguments that a row may leave to Python: what was tried; the errno in words, and its name."""
WRAPPED = {"EINVAL", "EPROTO"}
"""Errnos of shared memory that `shared_memory_files` has an entry for, which says what to do."""

Row = tuple[tuple[str, ...], tuple[str, ...]]


def rows_of_header() -> dict[str, Row]:
    """{name: (texts, numbers)} as the file has them."""
    found = re.findall(r'\bX\((\w+), "([^"]*)", "([^"]*)"\)', TABLE.read_text())
    return {name: (tuple(texts.split()), tuple(numbers.split())) for name, texts, numbers in found}


def rows_of(own_ffi: object, own_lib: object) -> list[tuple[str, Row]]:
    """As a built module has them."""
    string, row_of = own_ffi.string, own_lib.fc_error_row  # type: ignore[attr-defined]
    found, number = [], 1
    while row := row_of(number):
        texts, numbers = (tuple(string(it).decode().split()) for it in (row.texts, row.numbers))
        found.append((string(row.name).decode(), (texts, numbers)))
        number += 1
    return found


def failures() -> Iterator[tuple[str, str, str, tuple[int, int]]]:
    """(file and line, errno, row, (texts, numbers)) of each fc_fail() in the C sources."""
    for path in sorted((*SOURCES.glob("core/*.c"), *SOURCES.glob("dpdk/*.c"))):
        text = path.read_text()
        for found in re.finditer(r"\bfc_fail\(", text):
            words = split(text, found.end())
            named = dict(
                re.findall(r"\.(texts|numbers) = \{(.*)\}", one, re.DOTALL)[0] for one in words[2:]
            )
            counts = [
                len(split(named[key] + ")", 0)) if key in named else 0
                for key in ("texts", "numbers")
            ]
            line = text.count("\n", 0, found.start()) + 1
            yield f"{path.name}:{line}", words[0], words[1], (counts[0], counts[1])


def split(text: str, start: int) -> list[str]:
    """The arguments of a call from its opening bracket on."""
    words, depth = [""], 0
    for sign in text[start:]:
        if sign == ")" and not depth:
            return [word.strip() for word in words]
        depth += (sign in "({[") - (sign in ")}]")
        if sign == "," and not depth:
            words.append("")
        else:
            words[-1] += sign
    raise ValueError("the call has no end")


def test_every_row_of_c_has_an_entry_and_every_entry_a_row() -> None:
    rows = rows_of_header()
    assert len(rows) > 90 and set(CORE_REASONS) == set(rows)
    for name, (texts, numbers) in rows.items():
        names, own = CORE_REASONS[name].names, {*texts, *numbers}
        assert len(own) == len(texts) + len(numbers), name
        assert own <= set(names) <= own | OF_PYTHON, f"{name}: {own} and {names}"
        assert ("reason" in names) == ("errno" in names), f"{name}: both or none"


def test_every_reason_has_a_code_of_its_own() -> None:
    assert len({entry.code for entry in CORE_REASONS.values()}) == len(rows_of_header())


def test_the_built_modules_have_the_rows_of_the_file() -> None:
    assert rows_of(ffi, lib) == list(rows_of_header().items())


def test_the_capture_module_has_the_rows_of_the_file() -> None:
    capture = pytest.importorskip("flowcheck._dpdk")
    assert rows_of(capture.ffi, capture.lib) == list(rows_of_header().items())


def test_each_failure_in_c_gives_its_row_what_it_names() -> None:
    rows, seen = rows_of_header(), set()
    for where, _, name, counts in failures():
        assert name in rows, f"{where}: no row {name}"
        assert counts == tuple(map(len, rows[name])), f"{where}: {name} has other arguments"
        seen.add(name)
    sources = "".join(path.read_text() for path in SOURCES.glob("*/*.c"))
    seen |= set(re.findall(r"\bFC_ERROR_(\w+)", sources)) & set(rows)
    assert seen == set(rows), "no failure has this row"


def test_a_reason_that_does_not_say_what_to_do_stands_in_a_finding_that_does() -> None:
    about_files = {*vars(shared_file_reasons), *vars(capture_file_reasons)}
    for where, code, name, _ in failures():
        entry = CORE_REASONS[name]
        if not entry.remedy and entry is not TRUSTED_USERS_TOO_MANY:
            of_capture = name in vars(capture_file_reasons)
            assert of_capture or code in WRAPPED, f"{where}: {name} stands alone"
            assert name in about_files, where
    for entry in CORE_REASONS.values():
        assert bool(entry.remedy) == bool(entry.cause), entry.code


def ring() -> object:
    return ffi.new("struct fc_ring *")


def test_numbers_come_as_they_are_and_names_are_text() -> None:
    assert lib.fc_ring_create(b"/nowhere/r", (1 << 63) + 1, 128, 0, ring()) == -errno.EINVAL
    assert core_finding(errno.EINVAL, "it") == RING_SLOTS_REFUSED(
        slots=(1 << 63) + 1, limit=1 << 26
    )
    assert lib.fc_map_read_file(b"/nowhere/\xff", ffi.new("struct fc_map *")) == -errno.ENOENT
    assert core_finding(errno.ENOENT, "it") == FILE_NOT_OPENED(
        path="/nowhere/\ufffd", reason=os.strerror(errno.ENOENT), errno="ENOENT"
    )


def test_a_text_that_is_too_long_is_cut() -> None:
    path = b"/" + b"x" * 3000
    assert lib.fc_map_read_file(path, ffi.new("struct fc_map *")) < 0
    assert len(str(core_finding(errno.ENAMETOOLONG, "it").arguments["path"])) == 511


def test_a_reason_of_an_earlier_call_is_not_given_for_another_one() -> None:
    assert lib.fc_ring_set_readers(ring(), 0) == -errno.EINVAL
    with refused_as(like(CORE_REFUSED, subject="r", errno="EIO"), kind=RingError):
        check(-errno.EIO, "r", RingError)
    with refused_as(like(RING_READERS_REFUSED, readers=0), kind=RingError):
        check(-errno.EINVAL, "r", RingError)


def test_each_thread_has_its_own_reason() -> None:
    found: list[bool] = []

    def other() -> None:
        found.append(core_finding(errno.EINVAL, "r").is_any_of(CORE_REFUSED))

    assert lib.fc_ring_set_readers(ring(), 0) == -errno.EINVAL
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [True] and core_finding(errno.EINVAL, "r").is_any_of(RING_READERS_REFUSED)


def test_a_wrong_failure_is_found() -> None:
    call = 'fc_fail(-code, NAME, .texts = { f(a, b), "x" }, .numbers = { c[0, 1] })'
    words = split(call, call.index("(") + 1)
    assert words == ["-code", "NAME", '.texts = { f(a, b), "x" }', ".numbers = { c[0, 1] }"]
    with pytest.raises(ValueError, match="no end"):
        split(call[:-1], call.index("(") + 1)


def test_entries_are_found_by_their_row() -> None:
    assert all(isinstance(entry, Entry) for entry in CORE_REASONS.values())
    assert CORE_REASONS["RING_SLOTS_REFUSED"] is RING_SLOTS_REFUSED
