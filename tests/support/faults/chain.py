"""One schedule over the whole chain: supervisor and stages in processes of their own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from support.faults import frames, mounts, processes
from support.faults.inflicted import Plan, planned
from support.faults.schedule import Room, Schedule, Torn
from support.faults.truth import Truth, made, stated

LIMIT_S = 60.0
"""Of one command. One that nothing is done to takes 0.6 s, and on a busy machine a few."""
LIVES_MAX = 4
LOOK_S = 0.004


@dataclass(frozen=True)
class Life:
    """One run of the command."""

    code: int | None
    """None: it had not ended within LIMIT_S."""
    out: str
    err: str
    why_hung: str = ""


@dataclass
class Ran:
    """All that a schedule left to be judged."""

    schedule: Schedule
    truth: Truth
    run: Path
    out: Path
    lives: list[Life] = field(default_factory=list)
    torn: list[Path] = field(default_factory=list)
    """Files that were damaged between lives."""
    processes_left: int = 0
    memory_left: tuple[str, ...] = ()


def ran(schedule: Schedule, folder: Path, *, begun: bool = False) -> Ran:
    """Runs it in an empty folder; begun: each stage is a new interpreter. This process must have
    nothing to lose: its mounts change, and its children are ended."""
    room = schedule.room
    if mounts.may_mount():
        mounts.own_mounts(room.memory_mib)
    else:
        room = msgspec.structs.replace(room, run_kib=0, out_kib=0)
    processes.adopt_orphans()
    truth = made(schedule.job, folder / "job")
    captures, counts = _captures(schedule, truth, folder)
    places = _places(folder, room)
    at = Ran(schedule, truth, places[0], places[1])
    (folder / "job.toml").write_text(_job_file(schedule))
    notes = folder / "done"
    notes.mkdir()
    faults = planned(schedule.processes, counts, truth.steps)
    plan = Plan(faults=faults, spans=room.spans, notes=str(notes))
    words = [
        *("replay", *map(str, captures), "--source", "file", "--job", str(folder / "job.toml")),
        *("--digests", "--json", "--out", str(at.out), "--run", str(at.run)),
    ]
    while len(at.lives) < LIVES_MAX:
        at.lives.append(_life(words, plan, folder, begun))
        killed = at.lives[-1].code == -signal.SIGKILL
        if at.lives[-1].code is None or not (killed or (schedule.again and len(at.lives) == 1)):
            break
        if len(at.lives) == 1:
            at.torn = [path for one in schedule.torn for path in _tear(one, at, schedule.seed)]
    _look_behind(at)
    return at


def _captures(schedule: Schedule, truth: Truth, folder: Path) -> tuple[list[Path], list[int]]:
    """The files that are replayed, and how many frames each holds."""
    paths, counts = [], []
    for number, file in enumerate(truth.files):
        own = [f for f in schedule.frames if f.file % len(truth.files) == number]
        seen = frames.disturbed(frames.read(file), own)
        paths.append(folder / f"{number}.pcap")
        frames.write(paths[-1], seen, schedule.job.wrap)
        counts.append(len(seen))
    return paths, counts


def _places(folder: Path, room: Room) -> tuple[Path, Path]:
    """Of the run directory and of the checkpoints."""
    found = []
    for name, kib in (("run", room.run_kib), ("out", room.out_kib)):
        if kib:
            mounts.small_disk(folder / f"{name}-disk", kib)
            found.append(folder / f"{name}-disk" / name)
        else:
            found.append(folder / name)
    return found[0], found[1]


def _job_file(schedule: Schedule) -> str:
    room = schedule.room
    return "\n".join(
        [
            'digests = true\n[[source]]\nfile = "replaced"',
            f"[ring]\nslots = {room.slots}\nslot_bytes = {room.slot_bytes}",
            f"[staging]\nsize_bytes = {room.staging_bytes}",
            stated(schedule.job),
            "",
        ]
    )


def _life(words: Sequence[str], plan: Plan, folder: Path, begun: bool) -> Life:
    pid = processes.command(words, plan, folder, begun=begun)
    stops = [(n, fault) for n, _, fault in plan.faults if fault.action == "stop"]
    seen_s: dict[int, float] = {}
    until_s, code, why = time.monotonic() + LIMIT_S, None, ""
    while code is None:
        found, status = _reaped(pid)
        if found:
            code = os.waitstatus_to_exitcode(status)
            break
        now = time.monotonic()
        if now > until_s:
            why = _standing(plan)
            processes.end_children()
            break
        for number, fault in stops:
            note = Path(plan.notes) / str(number)
            if number not in seen_s and note.exists():
                seen_s[number] = now
            if number in seen_s and now - seen_s[number] > fault.stands_ms / 1000:
                with suppress(ProcessLookupError, ValueError):
                    os.kill(int(note.read_text()), signal.SIGCONT)
        time.sleep(LOOK_S)
    said = [(folder / name).read_text(errors="replace") for name in ("out.txt", "err.txt")]
    return Life(code, said[0], said[1], why)


def _reaped(pid: int) -> tuple[bool, int]:
    """Whether the command has ended, with its status; orphans that ended are seen off."""
    for child in processes.children():
        with suppress(ChildProcessError):
            found, status = os.waitpid(child, os.WNOHANG)
            if found == pid:
                return True, status
    return False, 0


def _standing(plan: Plan) -> str:
    """Who was there when nothing more happened, and what had been done to them."""
    told = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            state, parent = rest.split()[:2]
            told.append(f"{name.partition('(')[0].strip()}<{parent} {state}")
    done = sorted(path.name for path in Path(plan.notes).iterdir())
    return f"faults done: {', '.join(done) or 'none'}; processes: {' '.join(told[-12:])}"


def _tear(torn: Torn, at: Ran, seed: int) -> list[Path]:
    """Damages what the pattern finds first, if anything."""
    below, pattern = at.run, torn.file
    if pattern.startswith("out/"):
        below, pattern = at.out, pattern.removeprefix("out/")
    found = sorted(path for path in below.glob(pattern) if path.is_file()) if below.exists() else []
    if not found:
        return []
    path = random.Random(seed).choice(found)
    whole = path.read_bytes()
    cut = int(torn.at * len(whole))
    if torn.how == "remove":
        path.unlink()
        return [path]
    flipped = bytearray(whole)
    if whole:
        flipped[min(cut, len(whole) - 1)] ^= 1 << (seed % 8)
    content = {
        "truncate": whole[:cut], "empty": b"", "flip": bytes(flipped), "append": whole + b"\0x"
    }[torn.how]  # fmt: skip
    with suppress(OSError):  # a full disk
        path.write_bytes(content)
    return [path]


def _look_behind(at: Ran) -> None:
    """What is left once the last command has ended."""
    until_s = time.monotonic() + 2.0
    while processes.children() and time.monotonic() < until_s:
        _reaped(-1)
        time.sleep(LOOK_S)
    at.processes_left = len(processes.children())
    processes.end_children()
    if mounts.may_mount():
        at.memory_left = tuple(sorted(path.name for path in Path("/dev/shm").iterdir()))


def cleared(folder: Path) -> None:
    """Takes the folder of a schedule away; small disks in it went with their process."""
    shutil.rmtree(folder, ignore_errors=True)
