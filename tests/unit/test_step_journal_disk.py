"""The folder of gradients: what waits for the disk, its bound, and disks that are full, slow or
fail."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kept_replica import (
    SAVED,
    STEPS,
    Kept,
    _disk_in_time,
    again,
    journal_of,
    kept,
    told,
)
from support.refused_as import like, refused_as, says

from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BEHIND,
    JOURNAL_ENDS,
    JOURNAL_GAP,
    JOURNAL_GOES_ON,
    JOURNAL_LEADS_NOWHERE,
    JOURNAL_LEFT_WAITING,
    JOURNAL_NO_ROOM,
    JOURNAL_NONE_SINCE,
    JOURNAL_STOPPED,
    JOURNAL_TOO_SMALL,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.direct_io import DirectFile
from flowcheck.replica.step_journal import journal_writer
from flowcheck.replica.step_journal.journal_figures import read_figures
from flowcheck.replica.step_journal.journal_folder import SEGMENTS_LEAST, JournalFolder
from flowcheck.replica.step_journal.journal_reader import journals_below
from flowcheck.replica.step_journal.journal_records import JournalLine
from flowcheck.replica.step_journal.waiting_entries import WaitingEntries
from flowcheck.replica.step_journal.waiting_sizes import SLOTS_MOST
from flowcheck.step_numbers import Step

__all__ = ["_disk_in_time", "kept", "told"]


def test_what_waits_for_the_disk_is_written_by_the_next_updater(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, hangs = JournalFolder.append, threading.Event()
    monkeypatch.setattr(JournalFolder, "append", lambda *_: hangs.wait(60))
    monkeypatch.setattr(journal_writer, "CLOSE_S", 0.0)
    kept.steps(1, 6, hasty=True)
    kept.journal.close()
    assert [one.code for one in kept.told] == [JOURNAL_LEFT_WAITING.code]
    monkeypatch.setattr(JournalFolder, "append", append)
    monkeypatch.setattr(journal_writer, "CLOSE_S", 60.0)
    kept.journal = journal_of(tmp_path, kept.told, kept.replica, kept.size_bytes)
    kept.steps(7, STEPS)
    kept.written()
    assert kept.is_torchs(again(tmp_path))
    hangs.set()


def test_the_folder_keeps_its_bound_the_newest_steps_and_what_is_not_its_own(
    tmp_path: Path, told: list[Finding]
) -> None:
    others = ["training.jsonl", "steps-1.jsonl", "notes.gradients"]
    (tmp_path / "kept").mkdir()
    for name in others:
        (tmp_path / "kept" / name).write_text("somebody's\n" * 4096)
    bound = 12 * 4096 + 4 * 4096
    own = Kept(tmp_path, told, bound)
    own.steps(1, 20)
    own.again()  # in a new segment
    own.steps(21, 40)
    own.written()
    for name in others:
        assert (tmp_path / "kept" / name).read_text() == "somebody's\n" * 4096
    [reader] = journals_below(tmp_path / "kept")
    gradients = (tmp_path / "kept").glob("steps-00*.gradients")
    assert sum(file.stat().st_size for file in gradients) <= bound
    steps = [line.step for line in reader.lines]
    assert steps == list(range(steps[0], 41))
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None
    assert (figures.first_step, figures.last_step, figures.not_kept) == (steps[0], 40, 0)
    assert not told
    found = again(tmp_path)
    assert found.snapshot.step == SAVED and found.later is not None
    assert says(found.later, like(JOURNAL_LEADS_NOWHERE, step=SAVED))
    own.replica.close()


def test_a_full_disk_costs_the_journal_alone_and_is_told_once(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    own.steps(1, 4)
    own.again()
    with monkeypatch.context() as full:

        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(DirectFile, "put", no_room)
        own.steps(5, 6)
        own.journal.close()
    assert [one.code for one in told] == [JOURNAL_NO_ROOM.code]
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None
    assert (figures.last_step, figures.not_kept) == (4, 2)
    assert figures.why_not is not None
    assert figures.why_not.is_any_of(JOURNAL_NO_ROOM)
    own.again()
    own.steps(7, 8)
    own.written()
    assert again(tmp_path).snapshot.step == 4
    own.close()


def test_a_disk_that_stays_full_costs_no_kept_step_and_leaves_no_files(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    for step in range(1, SEGMENTS_LEAST):
        own.steps(step, step)
        own.again()

    folder = tmp_path / "kept"
    before = sorted(folder.iterdir())

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DirectFile, "put", no_room)
    own.steps(SEGMENTS_LEAST, 20)
    monkeypatch.setattr(os, "fsync", no_room)  # it fails as the segment is begun
    own.steps(21, 30)
    own.written()
    assert sorted(folder.iterdir()) == before
    held = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    assert not [one for one in held if str(folder) in one], "files that are open still"
    [reader] = journals_below(tmp_path / "kept")
    assert [line.step for line in reader.lines] == list(range(1, SEGMENTS_LEAST))
    own.replica.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, for the folder."""
    place = tmp_path / "kept"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount -t tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_says_itself_from_where_on_it_lacks_steps(
    tmp_path: Path, told: list[Finding], small_disk: Path
) -> None:
    own = Kept(tmp_path, told)
    own.steps(1, 5)
    own.wait_for_disk()
    own.replica.go_back(Step(4))
    with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    own.steps(5, 6)  # others than those that torch took first
    own.wait_for_disk()
    assert [one.code for one in told] == []
    own.written()
    assert [one.code for one in told] == [JOURNAL_NO_ROOM.code]
    assert again(tmp_path).snapshot.step == 4
    with refused_as(JOURNAL_ENDS, last=4, why=JOURNAL_NONE_SINCE()):
        again(tmp_path, 5)
    (small_disk / "filler").unlink()
    (tmp_path / "waiting").unlink()  # as when the machine died
    own.again()
    own.steps(7, 8)
    own.written()
    assert again(tmp_path).snapshot.step == 4
    with refused_as(JOURNAL_ENDS, last=4, why=JOURNAL_GAP(step=7)):
        again(tmp_path, 5)
    own.replica.close()


def test_a_disk_that_stays_full_drops_segments_until_three_are_left(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    for step in range(1, SEGMENTS_LEAST + 3):
        own.steps(step, step)
        own.again()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DirectFile, "put", no_room)
    own.steps(SEGMENTS_LEAST + 3, 20)
    own.written()
    assert len(list((tmp_path / "kept").glob("*.jsonl"))) == 3
    own.replica.close()


def test_a_fault_of_the_writer_is_told_and_costs_no_step(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no such case")

    monkeypatch.setattr(JournalFolder, "append", fails)
    own = Kept(tmp_path, told)
    own.steps(1, SLOTS_MOST + 3, hasty=True)
    own.written()
    assert own.replica.step == SLOTS_MOST + 3
    assert JOURNAL_STOPPED.code in [one.code for one in told]
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None and figures.why_not is not None
    assert figures.why_not.is_any_of(JOURNAL_STOPPED)
    own.replica.close()


def test_a_head_torn_by_a_kill_takes_no_slot_and_no_other_entry(tmp_path: Path) -> None:
    entries = WaitingEntries(tmp_path / "waiting", 4096)
    lines = [JournalLine(before=(Step(n), "a"), behind=(Step(n + 1), "b")) for n in range(20)]
    gradient = np.arange(1024, dtype=np.float32)

    def put(line: JournalLine) -> bool:
        entry = entries.put(line, [gradient])
        if entry is not None:
            entries.commit(entry)
        return entry is not None

    assert all(put(line) for line in lines[:SLOTS_MOST])
    raw = bytearray((tmp_path / "waiting").read_bytes())
    head = next(n for n in range(4096, len(raw), 8) if raw[n] == 2)  # its sequence
    raw[head + 7] = 0xFF
    (tmp_path / "waiting").write_bytes(raw)
    entries = WaitingEntries(tmp_path / "waiting", 4096)
    left = [lines[0], *lines[2:SLOTS_MOST]]
    assert [entry.line for entry in entries.waiting()] == left
    assert put(lines[SLOTS_MOST])
    assert not put(lines[SLOTS_MOST + 1])
    held = entries.waiting()
    assert [entry.line for entry in held] == [*left, lines[SLOTS_MOST]]
    assert all(entry.payload[:4096].tobytes() == gradient.tobytes() for entry in held)
    del held
    other = WaitingEntries(tmp_path / "waiting", 5000)  # of another model: nothing of it is left
    assert not other.waiting()


def test_room_is_made_where_the_file_system_is_fuller_than_the_bound_says(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    for step in range(1, SEGMENTS_LEAST + 1):
        own.steps(step, step)
        own.again()
    put, full = DirectFile.put, [True]

    def once(*given: Any) -> None:
        if full and full.pop():
            raise OSError(28, "No space left on device")
        put(*given)

    monkeypatch.setattr(DirectFile, "put", once)
    own.steps(SEGMENTS_LEAST + 1, STEPS)
    own.written()
    [reader] = journals_below(tmp_path / "kept")
    kept = [line.step for line in reader.lines]
    assert kept == list(range(2, STEPS + 1)), "the oldest segment made room"
    assert not told
    own.replica.close()


def test_what_a_slow_disk_leaves_out_is_told_once_and_no_step_waits_for_it(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, append = threading.Event(), JournalFolder.append
    monkeypatch.setattr(JournalFolder, "append", lambda *given: go_on.wait(60) and append(*given))
    own = Kept(tmp_path, told)
    own.steps(1, SLOTS_MOST + 3, hasty=True)
    own.journal.tell()
    assert [one.code for one in told] == [JOURNAL_BEHIND.code]
    assert told[0].arguments["step"] == SLOTS_MOST + 1
    go_on.set()
    own.steps(SLOTS_MOST + 4, SLOTS_MOST + 4)
    own.written()
    assert [one.code for one in told] == [JOURNAL_BEHIND.code, JOURNAL_GOES_ON.code]
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None
    assert (figures.last_step, figures.not_kept) == (SLOTS_MOST + 4, 3)
    assert figures.why_not is None
    assert again(tmp_path).snapshot.step == SLOTS_MOST
    own.close()


def test_too_few_bytes_are_told_and_nothing_is_written(tmp_path: Path, told: list[Finding]) -> None:
    own = Kept(tmp_path, told, 4096)
    own.steps(1, 2)
    own.journal.tell()
    assert [one.code for one in told] == [JOURNAL_TOO_SMALL.code]
    assert not (tmp_path / "kept").exists()
    own.close()
