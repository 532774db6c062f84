"""A stage that does to itself what a schedule says, where its progress says so.

The position is looked at where the stage begins a turn; the signal comes from a timer of the
kernel, microseconds later, amid whatever the stage does then. What was done is noted in a folder,
so that a stage which is started again does not do it again.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from support.faults.schedule import ENDS_AFTER, ProcessFault

from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.run_directory.run_dir import RunDir

CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0  # linux/time.h, asm-generic/siginfo.h
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_libc = ctypes.CDLL(None, use_errno=True)


def _applied(shard: Path) -> int:
    """The last iteration applied of the shard at this path; 0 while there is none."""
    if not shard.exists():
        return 0
    with GradientShard.open(shard) as opened:
        return opened.applied_iteration


class _SignalEvent(ctypes.Structure):
    """struct sigevent (asm-generic/siginfo.h), 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_byte * 48),
    )


def signal_after(number: signal.Signals, after_us: int) -> None:
    """The kernel sends it to this process, once; 0: now."""
    if not after_us:
        os.kill(os.getpid(), number)
        return
    event = _SignalEvent(signo=int(number), notify=SIGEV_SIGNAL)
    timer = ctypes.c_void_p()
    seconds, rest_us = divmod(after_us, 1_000_000)
    when = (ctypes.c_long * 4)(0, 0, seconds, rest_us * 1000)  # struct itimerspec
    made = _libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
    if made or _libc.timer_settime(timer, 0, ctypes.byref(when), None):
        raise OSError(ctypes.get_errno(), "no timer")


class Plan(msgspec.Struct, frozen=True):
    """What stages are told: faults with their number in the schedule, positions in their unit."""

    faults: tuple[tuple[int, float, ProcessFault], ...]
    """(number, position, fault)"""
    spans: tuple[int, int, int]
    notes: str
    """Folder where what was done is noted."""


class Inflictor:
    """The faults of one process."""

    def __init__(self, plan: Plan, name: str) -> None:
        """name: of the stage, with the number of its ring."""
        self._notes = Path(plan.notes)
        self._waiting = [one for one in plan.faults if name_of(one[2]) == name]

    def look(self, position: float) -> None:
        """At the begin of a turn."""
        for one in [one for one in self._waiting if position >= one[1]]:
            self._waiting.remove(one)
            number, _, fault = one
            with suppress(FileExistsError):
                note = self._notes / f"{number}"
                note.open("x").close()
                note.write_text(f"{os.getpid()}")
                signal_after(SIGNALS[fault.action], fault.after_us)


def name_of(fault: ProcessFault) -> str:
    numbered = fault.stage in ("capture", "parse")
    return f"{fault.stage}-{fault.number}" if numbered else fault.stage


class Inflicted:
    """A service whose turns begin with a look."""

    def __init__(self, service: Any, inflictor: Inflictor, position: Callable[[], float]) -> None:
        self._service, self._inflictor, self._position = service, inflictor, position
        self.name = service.name

    def start(self, links: Any) -> None:
        self._inflictor.look(-1.0)
        self._service.start(links)

    def work(self) -> int:
        self._inflictor.look(self._position())
        return int(self._service.work())

    def on_message(self, message: Any) -> None:
        self._service.on_message(message)

    def drained(self) -> bool:
        return bool(self._service.drained())

    def stop(self) -> None:
        self._inflictor.look(float("inf"))
        self._service.stop()


def afflict(plan: Plan) -> None:
    """From now on stages of this process are inflicted, and their turns as short as planned."""
    from flowcheck.stages.packet_capture import capture_file, parse_stage
    from flowcheck.stages.staged_messages import staging_space
    from flowcheck.stages.supervisor import stage_main

    capture_file.SPAN_FRAMES, parse_stage.SPAN_SLOTS, staging_space.SPAN_SLOTS = plan.spans
    staging_space.SPAN_SLOTS_LEAST = min(staging_space.SPAN_SLOTS_LEAST, plan.spans[2])
    made = stage_main._service

    def inflicted(name: str, where: RunDir, config: Any, number: int) -> Any:
        service = made(name, where, config, number)
        inflictor = Inflictor(plan, service.name)
        return Inflicted(service, inflictor, _position(service, where))

    stage_main._service = inflicted


def _position(service: Any, where: RunDir) -> Callable[[], float]:
    """How far a stage is: frames of its ring, or steps."""
    kind = service.name.partition("-")[0]
    if kind == "capture":
        return lambda: float(service._ring.head)
    if kind == "parse":
        return lambda: float(service._ring.parsed)
    if kind == "extract":
        return lambda: float(sum(one.ring.tail for one in service._extractors))
    return lambda: float(_applied(where.shard))


def afflict_supervisor(plan: Plan) -> None:
    """The supervisor of this process, likewise."""
    from flowcheck.stages.supervisor.supervisor import Supervisor

    inflictor = Inflictor(plan, "supervisor")
    start, work, stop = Supervisor.start, Supervisor.work, Supervisor.stop

    def started(self: Supervisor, links: Any) -> None:
        inflictor.look(-1.0)
        start(self, links)

    def worked(self: Supervisor) -> int:
        inflictor.look(float(sum(ring.tail for ring in self._rings)))
        return work(self)

    def stopped(self: Supervisor) -> None:
        stop(self)
        inflictor.look(float("inf"))

    Supervisor.start, Supervisor.work, Supervisor.stop = started, worked, stopped  # type: ignore[method-assign]


def planned(
    faults: Sequence[ProcessFault], frames: Sequence[int], steps: int
) -> tuple[tuple[int, float, ProcessFault], ...]:
    """Shares as positions. frames: [capture] how many it holds."""
    found = []
    for number, fault in enumerate(faults):
        whole = sum(frames)
        if fault.stage in ("capture", "parse"):
            whole = frames[fault.number % len(frames)]
        if fault.stage == "update":
            whole = steps
        position = fault.at * whole if 0 <= fault.at <= ENDS_AFTER else fault.at
        if fault.at > ENDS_AFTER:
            position = float("inf")
        found.append((number, position, fault))
    return tuple(found)
