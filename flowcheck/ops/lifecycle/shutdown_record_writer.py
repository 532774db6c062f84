"""Writes the record of why a chain ended, while its shared memory can still be read."""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.how_chains_end import (
    ASKED_BY,
    FOUND_KILLED,
    SIGNAL_HUP,
    SIGNAL_INT,
    SIGNAL_OTHER,
    SIGNAL_TERM,
    TOLD_TO_STOP,
)
from flowcheck.findings.finding import Entry, Finding, plain_error_text
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.ops.watch.state.chain_state import (
    NO_OPTIONS,
    ChainEnd,
    EndKind,
    JobEnd,
    ReplayOptions,
    RingState,
)
from flowcheck.ops.watch.state.replay_options_record import read_replay_options, reads_captures
from flowcheck.ops.watch.state.ring_reader import read_ring
from flowcheck.ops.watch.state.shutdown_record import (
    last_sign_of_life_ns,
    path_to_record,
    read_end,
    utc_text,
    write_end,
)
from flowcheck.ops.watch.state.state_reader import READ_FAILURES
from flowcheck.ops.watch.state.taint_of_models import record_taint
from flowcheck.ops.watch.state.traffic_silence import with_frame_ages
from flowcheck.private_files import write_private
from flowcheck.stages.chain_events.heartbeat import read_beat
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import START, Step

SIGNAL_FINDINGS: dict[int, Entry] = {
    signal.SIGINT: SIGNAL_INT,
    signal.SIGHUP: SIGNAL_HUP,
    signal.SIGTERM: SIGNAL_TERM,
}


def record_stop_request(run: RunDir) -> None:
    """Writes the name of the user and command that is about to stop a chain; the signal itself
    does not carry it."""
    with suppress(OSError):
        write_private(run.stop_request, msgspec.json.encode(_me("flowcheck down")))


def stopped_by(run: RunDir, received: int) -> Finding:
    """Who stopped the chain. received: number of the signal; 0: none."""
    with suppress(OSError):
        return _who_asked(run.stop_request.read_bytes())
    if received in SIGNAL_FINDINGS:
        return SIGNAL_FINDINGS[received]()
    return SIGNAL_OTHER(received) if received else TOLD_TO_STOP()


def _who_asked(noted: bytes) -> Finding:
    try:
        return msgspec.json.decode(noted, type=Finding)
    except DECODE_ERRORS:  # an earlier version's command wrote a sentence
        return earlier_finding(noted.decode(errors="replace"))


def record_end(
    run: RunDir,
    how: EndKind,
    by: Finding,
    jobs: Sequence[JobEnd],
    time_ns: int | None = None,
    *,
    replay: bool = False,
    options: ReplayOptions = NO_OPTIONS,
) -> None:
    """Writes the record of the end of the chain in `run`, whose stages have ended. What cannot be
    read is left out.

    by: who stopped it, why it failed, or who found it killed.
    jobs: result of each job.
    time_ns: when it ended, nanoseconds since 1970; None: now.
    options: of a replay, for the command that repeats it.
    """
    restarts: dict[str, int] = {}
    for number, own in enumerate(all_run_dirs(run), 1):
        beat = read_beat(own.heartbeat_file)
        named = "" if number == 1 else f" (job {number})"
        restarts |= {f"{name}{named}": n for name, n in (beat.restarts if beat else {}).items()}
    now_ns = time.time_ns() if time_ns is None else time_ns
    record_taint(run)
    write_end(
        run,
        ChainEnd(
            how=how,
            by=by,
            time_ns=now_ns,
            jobs=tuple(jobs),
            restarts=restarts,
            rings=tuple(_rings(run, aged_now=time_ns is None)),
            replay=replay,
            replay_options=options,
        ),
    )


def record_failed_end(
    run: RunDir,
    why: Finding,
    folders: Sequence[Path | str | None],
    *,
    replay: bool = False,
    options: ReplayOptions = NO_OPTIONS,
) -> None:
    """why: what it raised; folders: [job] where the replica is kept; replay, options: as
    `record_end`."""
    came_to = _came_to(run, folders)
    record_end(run, EndKind.FAILED, why, came_to, replay=replay, options=options)


def failure_finding(error: BaseException) -> Finding:
    """What ended a chain, as its record has it."""
    if isinstance(error, FlowCheckError):
        return error.finding
    return ERROR_TEXT(kind=type(error).__name__, text=plain_error_text(error))


def record_killed_end(
    run: RunDir, finder: str, done: Finding, folders: Sequence[Path | str | None]
) -> None:
    """Records the end of a killed chain.

    finder: the command that found it.
    done: what that command did with its replica.
    folders: [job] where its replica was saved, None: nowhere; may be shorter than the number of
    jobs.
    """
    told = None
    with suppress(*READ_FAILURES):
        told = read_end(run)
    if told is not None:  # it ended by itself, and had no room for its replica
        write_end(run, msgspec.structs.replace(told, jobs=tuple(_came_to(run, folders))))
        return
    by = FOUND_KILLED(finder=_me(finder), time=utc_text(time.time_ns()), done=done)
    record_end(
        run,
        EndKind.KILLED,
        by,
        _came_to(run, folders),
        last_sign_of_life_ns(run),
        replay=reads_captures(run.root),
        options=read_replay_options(run),
    )


def _came_to(run: RunDir, folders: Sequence[Path | str | None]) -> list[JobEnd]:
    runs = all_run_dirs(run)
    each = [*folders, *[None] * (len(runs) - len(folders))]
    return [
        JobEnd(step=_step(own), checkpoint=path_to_record(folder) if folder else None)
        for own, folder in zip(runs, each, strict=True)
    ]


def _step(run: RunDir) -> Step:
    with suppress(*READ_FAILURES):
        return Step(int(str((last_step(run) or {}).get("step", 0))))
    return START


def _rings(run: RunDir, *, aged_now: bool) -> list[RingState]:
    """aged_now: it ends now, so that ages of frames are those at its end."""
    found: list[RingState] = []
    with suppress(*READ_FAILURES):
        config = run.settings()
        for number in range(len(config.rings)):
            found.append(read_ring(run, config, number)[0])
        if aged_now:
            found = with_frame_ages(found, config, read_beat(run.heartbeat_file))
    return found


def _me(command: str) -> Finding:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return ASKED_BY(command=command, pid=os.getpid(), user=user)
