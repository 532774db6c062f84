"""Lines and records that find no room, on a file system that is full."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flowcheck.atomic_write import atomic_path, atomic_path_per_process, write_atomically
from flowcheck.findings.catalog.chain_processes import RECORDS_UNWRITTEN
from flowcheck.findings.catalog.how_chains_end import STAYS_IN_MEMORY
from flowcheck.findings.catalog.refused_commands import NO_INODE_AT, NO_ROOM_AT
from flowcheck.findings.finding import Finding
from flowcheck.messages import Unwritten as Told
from flowcheck.ops.command_errors import OPERATOR_ERROR, exit_on_error
from flowcheck.replica.state_file.digest_log import DigestLog, digests_at
from flowcheck.stages.chain_events.event_log import EventKind, EventLogWriter, read_event
from flowcheck.stages.file_error import file_error_finding
from flowcheck.stages.privilege.output_delivery import OutputDelivery
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.disk_full import DiskFullCounter
from flowcheck.stages.run_directory.service_account import account_of

MOST = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, of which three pages are left."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount -t tmpfs needs root")
    (tmp_path / "filler").write_bytes(bytes(13 * 4096))
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_no_part_of_a_line_without_room_stays_and_what_a_kill_tore_is_ended_first(
    disk: Path,
) -> None:
    path, lines = disk / "lines", []
    path.write_bytes(b'{"torn')
    with pytest.raises(OSError, match="space") as caught:
        for number in range(100):
            lines.append(b"%d" % number * 999)
            append_line(path, lines[-1], MOST)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes().splitlines() == [b'{"torn', *lines[:-1]] and len(lines) > 3
    (disk / "filler").unlink()
    append_line(path, b"again", MOST)
    assert path.read_bytes().splitlines() == [b'{"torn', *lines[:-1], b"again"]


def test_a_file_that_cannot_be_halved_for_lack_of_room_is_halved_later(disk: Path) -> None:
    path = disk / "lines"
    for _ in range(2):
        append_line(path, b"x" * 5000, 8000)
    assert path.stat().st_size > 8000
    (disk / "filler").unlink()
    append_line(path, b"y", 8000)
    assert path.read_bytes() == b"y\n"


def test_events_say_once_that_there_is_no_room_and_how_many_lack_in_front_of_the_next(
    disk: Path,
) -> None:
    path, said = disk / "events.jsonl", list[Finding]()
    room = EventLogWriter(path, said.append)
    line = b'{"kind":"note","why":"' + b"x" * 1000 + b'"}'  # as an earlier version wrote it
    for _ in range(20):
        assert not room.append(line)
    there = len(path.read_bytes().splitlines())
    assert 0 < there < 20 and room.lines == 20 - there
    assert said == [RECORDS_UNWRITTEN(file=path, error="No space left on device")] == [*room.full]
    assert not room.note_room_again()
    (disk / "filler").unlink()
    assert room.append(b'{"kind":"stop"}') and not room.full and len(said) == 2
    told = [read_event(own) for own in path.read_bytes().splitlines()]
    assert None not in told and told[-2:][0] is not None
    assert [one.kind for one in told[there:] if one] == [EventKind.NOTE, EventKind.STOP]
    assert [one.count for one in told[there:] if one] == [room.lines, 0]


def test_what_a_stage_lacks_is_counted_with_it_and_its_end_is_an_event(tmp_path: Path) -> None:
    said = list[Finding]()
    room = EventLogWriter(tmp_path / "events.jsonl", said.append)
    own = DiskFullCounter(tmp_path / "steps")

    def full() -> None:
        raise OSError(errno.ENOSPC, "no room")

    for _ in range(3):
        assert not own.attempt(full)
        lines, why = own.changes() or (0, None)
        assert (
            room.count_unwritten(Told(stage="update", file="steps", lines=lines, full=why)) is None
        )
    assert own.changes() is None and own.attempt(lambda: None)
    lines, why = own.changes() or (-1, RECORDS_UNWRITTEN(file="", error=""))
    event = room.count_unwritten(Told(stage="update", file="steps", lines=lines, full=why))
    assert event is not None and (event.count, room.lines, room.full) == (3, 3, ())
    assert len(said) == 2 and own.changes() is None
    with pytest.raises(PermissionError):
        own.attempt(lambda: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no")))


@pytest.mark.parametrize("tensors", [3, 200])
def test_a_step_whose_digests_found_no_room_is_not_known_also_where_it_was_taken_before(
    disk: Path, tensors: int
) -> None:
    """The digests of before are of another past."""
    path = disk / "trace"
    trace = DigestLog(path, tensors)
    steps = 0
    with suppress(OSError):
        for step in range(1, 10_000):
            trace.append(step, [bytes([step % 251]) * 16] * tensors)
            steps = step
    assert steps > 2 and digests_at(path, steps + 1) is None
    with pytest.raises(OSError, match="space"):
        trace.append(2, [b"n" * 16] * tensors)
    assert digests_at(path, 2) is None
    assert digests_at(path, 1) == [bytes([1]) * 16] * tensors
    assert digests_at(path, steps) == [bytes([steps % 251]) * 16] * tensors
    (disk / "filler").unlink()
    trace.append(2, [b"n" * 16] * tensors)
    assert digests_at(path, 2) == [b"n" * 16] * tensors
    trace.close()
    DigestLog(path, tensors).close()
    assert digests_at(path, 2) == [b"n" * 16] * tensors


def test_a_trace_that_begins_without_room_begins_once_there_is_some(disk: Path) -> None:
    (disk / "more").write_bytes(bytes(3 * 4096))
    trace = DigestLog(disk / "trace", 3)
    with pytest.raises(OSError, match="space"):
        trace.append(1, [b"a" * 16] * 3)
    assert digests_at(disk / "trace", 1) is None
    trace.close()
    (disk / "filler").unlink()
    trace = DigestLog(disk / "trace", 3)
    trace.append(2, [b"b" * 16] * 3)
    trace.close()
    assert digests_at(disk / "trace", 2) == [b"b" * 16] * 3
    assert digests_at(disk / "trace", 1) is None


def write_folder(path: Path) -> None:
    with atomic_path_per_process(path, folder=True) as place:
        (place / "model.safetensors").write_bytes(bytes(1 << 17))


def write_file(path: Path) -> None:
    with atomic_path(path) as place:
        place.write_bytes(bytes(1 << 17))


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (write_folder, "out"),
        (write_file, "out"),
        (lambda path: write_atomically(path, bytes(1 << 17)), "out"),
    ],
)
def test_a_full_disk_is_told_by_the_name_that_the_user_knows(
    disk: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], None], named: str
) -> None:
    with pytest.raises(SystemExit) as left:
        exit_on_error(lambda: write(disk / "out"))
    said = capsys.readouterr().err
    assert left.value.code == OPERATOR_ERROR and str(disk / named) in said
    assert ".tmp" not in said and "Errno" not in said
    there = os.statvfs(disk)
    total_mib = there.f_blocks * there.f_frsize >> 20
    assert f"at {disk} " in said and f"of {total_mib} MiB are free" in said
    assert not list(disk.glob(".*"))


def test_a_file_system_without_an_inode_is_not_told_to_be_short_of_bytes(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m,nr_inodes=3", str(disk)], check=True)
    (disk / "last").touch()
    with pytest.raises(OSError, match="space") as caught:
        write_atomically(disk / "one", b"x")
    found = file_error_finding(caught.value)
    assert found.is_any_of(NO_INODE_AT) and found.arguments["path"] == str(disk / "one")
    assert found.arguments["free_mib"] == 7 and not found.is_any_of(NO_ROOM_AT)


def test_an_error_of_a_file_stands_in_a_finding_without_its_number() -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "/checkpoints/step-9")
    said = str(STAYS_IN_MEMORY(error=error, run="/run/job"))
    assert "/checkpoints/step-9: No space left on device" in said and "Errno" not in said


def test_what_another_file_says_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, atomic_path(tmp_path / "out"):
        (tmp_path / "other").read_bytes()
    assert caught.value.filename == str(tmp_path / "other")


def test_a_place_that_takes_no_output_is_told_by_the_name_of_the_output() -> None:
    with pytest.raises(OSError) as caught:
        OutputDelivery.make(account_of(os.geteuid()), Path("/proc/job.svg"), force=False)
    assert caught.value.filename == "/proc/job.svg"
