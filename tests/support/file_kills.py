"""Every system call that changes a file is a kill point: for each of them, what is found behind it.

    explore(folder, make, work, judge)

make(place) lays what was there before, in `place`, an empty folder; work(place) is what is killed;
judge(place, when) looks at what a kill left, and does what a restart does; it raises where
something is neither as it was nor as it is to be. Each runs in a process of its own, forked from
this one, and `place` is the same path all the time, so that links in it hold. Each call
is a kill point, and each write is torn as well: half of it is done. What several kills leave alike
is judged once. What lies in mapped memory is no kill point: support.kill_points and
support.instants are for that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import xxhash

SOURCE = Path(__file__).resolve().with_suffix(".c")
ENDED, NOTHING_TO_TEAR = 1000, 1001
NEVER = -1
BEFORE_EACH = ctypes.CFUNCTYPE(None)
SYNCS = ("fsync", "fdatasync")
SAID_BYTES = 4096
TURNS = 10
"""Tries to tear a write. A choice."""
FILLS = ("write", "pwrite", "open", "creat", "fchmod", "chmod", "fallocate", "sendfile")
"""Begin the names of calls that make or fill a file: behind them nothing that was there before has
another name, and nothing is durable that was not."""
LIMIT_S = 120
"""Of one child: no test waits for ever."""


def lacks() -> str:
    """Why no process can be followed here; empty: it can."""
    if os.uname().machine != "x86_64":
        return "file_kills.c reads the registers of x86-64"
    return "" if shutil.which("cc") else "no C compiler"


@cache
def library(folder: Path) -> ctypes.CDLL:
    """Built in `folder`. Raises CalledProcessError."""
    built = folder / f"file_kills-{os.getpid()}.so"
    words = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", str(SOURCE), "-o", str(built)]
    subprocess.run(words, check=True, timeout=120)
    return ctypes.CDLL(str(built), use_errno=True)


@dataclass
class Explored:
    """What was tried, call by call: its name, and the path in the folder."""

    calls: list[str] = field(default_factory=list)
    torn: int = 0


def explore(
    folder: Path,
    make: Callable[[Path], None],
    work: Callable[[Path], None],
    judge: Callable[[Path, str], None],
    *,
    fills: int = 1,
) -> Explored:
    """folder: an empty one, made here for this; fills: of calls that only make or fill a file
    (`FILLS`) each n-th alone is tried, and the first behind another call, before which that one's
    work is all there is. Raises AssertionError with the call that was killed where
    `judge` does.

    Both are done once in this process first, whose modules the forked ones then have."""
    tool = library(folder)
    before, place = folder / "before", folder / "place"
    place.mkdir()
    with _one_thread():
        _in_child(partial(make, place), "made")
        place.rename(before)
        _copied(before, place)
        work(place)
        judge(place, "not killed")
        return _explore(tool, before, place, work, judge, fills)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A forked child has none of torch's workers."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _explore(
    tool: ctypes.CDLL,
    before: Path,
    place: Path,
    work: Callable[[Path], None],
    judge: Callable[[Path, str], None],
    fills: int,
) -> Explored:
    done = Explored()
    judged: set[bytes] = set()

    def look(when: str) -> None:
        """What lies there byte for byte as it lay behind another kill was judged then."""
        if (found := _state(place)) not in judged:
            judged.add(found)
            _in_child(partial(judge, place, when), when)

    def tear(at: int, said: str) -> None:
        # Threads of one save take turns as they like: the call of this number may be another one.
        for _ in range(TURNS if "write " in said else 0):
            code, torn = _run(tool, before, place, work, at, torn=True)
            if code == ENDED:
                done.torn += 1
                look(f"killed amid call {at}, {said}")
            if code == ENDED or (code == NOTHING_TO_TEAR and torn == said):
                break

    calls = list[str]()
    code, _ = _run(tool, before, place, work, NEVER, torn=False, calls=calls)
    assert code == 0, f"the work itself ended with {code}"
    look("not killed")
    for at in range(len(calls)):
        if not _is_tried(at, calls, fills):
            continue
        code, said = _run(tool, before, place, work, at, torn=False)
        # Threads that go other ways make a call less now and then.
        assert code in (ENDED, 0), f"the work itself ended with {code}"
        look(f"killed before call {at}, {said}")
        tear(at, said)
    done.calls = calls
    return done


def _is_tried(at: int, calls: Sequence[str], fills: int) -> bool:
    """Behind a sync a kill leaves what it leaves before it: the next call is the one to try."""
    if at % fills == 0:
        return True
    behind_a_fill = at > 0 and calls[at - 1].startswith(FILLS)
    return not calls[at].startswith(SYNCS) and not (behind_a_fill and calls[at].startswith(FILLS))


def _state(place: Path) -> bytes:
    """Digest of all that lies below a folder: names, kinds, rights, links and contents."""
    digest = xxhash.xxh3_128()
    for path in sorted(place.rglob("*")):
        told = path.lstat()
        kind = stat.S_IFMT(told.st_mode)
        link = path.readlink() if kind == stat.S_IFLNK else ""
        size = told.st_size if kind == stat.S_IFREG else 0
        name = str(path.relative_to(place))
        digest.update(repr((name, told.st_mode, told.st_uid, told.st_nlink, link, size)).encode())
        if size:
            with path.open("rb") as file:
                for begin, end in _filled(file.fileno(), size):
                    digest.update(repr((begin, end)).encode())
                    digest.update(os.pread(file.fileno(), end - begin, begin))
    return digest.digest()


def _filled(file: int, size: int) -> Iterator[tuple[int, int]]:
    """(begin, end) in bytes of what was ever written. Rings and staging areas are mostly holes."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # there is none behind it
        end = os.lseek(file, begin, os.SEEK_HOLE)
        yield begin, end


def _copied(before: Path, place: Path) -> None:
    """Holes stay holes, and two names of one file two names of one."""
    first: dict[int, str] = {}

    def copied(source: str, target: str) -> str:
        told = os.lstat(source)
        if told.st_ino in first:
            os.link(first[told.st_ino], target)
        elif stat.S_ISREG(told.st_mode):
            first[told.st_ino] = target
            _copied_file(source, target)
        else:
            os.mknod(target, told.st_mode)
        return target

    shutil.copytree(before, place, symlinks=True, copy_function=copied)


def _copied_file(source: str, target: str) -> None:
    with Path(source).open("rb") as one, Path(target).open("xb") as other:
        told = os.fstat(one.fileno())
        os.ftruncate(other.fileno(), told.st_size)
        for begin, end in _filled(one.fileno(), told.st_size):
            os.pwrite(other.fileno(), os.pread(one.fileno(), end - begin, begin), begin)
        os.fchown(other.fileno(), told.st_uid, told.st_gid)
    shutil.copystat(source, target)


def _run(
    tool: ctypes.CDLL,
    before: Path,
    place: Path,
    work: Callable[[Path], None],
    at: int,
    *,
    torn: bool,
    calls: list[str] | None = None,
) -> tuple[int, str]:
    shutil.rmtree(place, ignore_errors=True)
    _copied(before, place)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 99
        signal.alarm(LIMIT_S)
        with suppress(BaseException):
            code = _work(tool, place, work)
        os._exit(code)
    said = ctypes.create_string_buffer(SAID_BYTES)
    root = os.fsencode(place)
    heard = BEFORE_EACH()  # null
    if calls is not None:
        heard = BEFORE_EACH(lambda: calls.append(os.fsdecode(said.value)))
    code = tool.file_kills_follow(
        child, root, ctypes.c_int64(at), int(torn), said, ctypes.c_size_t(SAID_BYTES), heard
    )
    assert code >= 0, f"the work cannot be followed: {os.strerror(-code)}"
    return code, os.fsdecode(said.value)


def _work(tool: ctypes.CDLL, place: Path, work: Callable[[Path], None]) -> int:
    try:
        if tool.file_kills_begin():
            return 98
        work(place)
    except BaseException:
        traceback.print_exc()
        return 97
    return 0


def _in_child(done: Callable[[], None], when: str) -> None:
    """It may map, lock and change what it likes."""
    with _pipe() as (reading, writing):
        child = os.fork()
        if not child:
            code = 0
            signal.alarm(LIMIT_S)
            try:
                done()
            except BaseException:
                os.write(writing, traceback.format_exc()[-3500:].encode())
                code = 1
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.set_blocking(reading, False)
        why = b""
        with suppress(BlockingIOError):
            why = os.read(reading, 1 << 16)
    assert status == 0, f"{when}: {why.decode(errors='replace') or status}"


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)
