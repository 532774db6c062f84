"""The updater process after its stage has ended writes checkpoints for the supervisor: it has
torch loaded, which takes others seconds.

They talk by lines over a socket whose other end the process was started with: first an empty line
from it, then a CheckpointRequest and a CheckpointReply as often as the supervisor asks. The process
ends when the socket is closed.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.finding import Finding
from flowcheck.stages.privilege.capture_starter_client import ProcessHandle
from flowcheck.stages.supervisor.process_progress import LOOK_S, ProgressTimeout
from flowcheck.step_numbers import Step

STILL_LIMIT_S = 600.0
"""Seconds without progress. A disk may stand still for long, and a step is being written to it. A
choice: longer delays the end, shorter loses a step that is in hand."""
END_LIMIT_S = 5.0
"""Seconds for an interpreter that has nothing more to do, or was killed, to be gone. A choice:
longer delays the end."""


class SaveRequest(msgspec.Struct, frozen=True):
    """A replica's step as a checkpoint: of a run directory, in a folder."""

    run: str
    directory: str
    step: Step | None
    """None: the last one."""


class SaveReply(msgspec.Struct, frozen=True):
    """What was written, or why nothing was."""

    folder: str | None = None
    refused: Finding | None = None
    """Of a StateError."""
    failed: tuple[int | None, str, str | None] | None = None
    """An OSError's errno, text and file."""


class HelperGone(Exception):
    """The helper process has ended, or stands still."""


class CheckpointHelper:
    """The supervisor's end."""

    def __init__(self, process: ProcessHandle, channel: socket.socket) -> None:
        self.process, self._channel = process, channel
        self._lines = channel.makefile("rb")
        self._ready = False

    @property
    def is_ready(self) -> bool:
        """Whether its stage has ended and it waits for requests. Never blocks."""
        if not self._ready and select.select([self._channel], [], [], 0)[0]:
            with suppress(OSError):
                self._ready = self._lines.readline() == b"\n"
        return self._ready

    def save(self, run: Path, directory: Path, step: Step | None) -> Path | None:
        """The folder of the checkpoint; None where there is no replica. Raises StateError and
        OSError as the helper reports them, HelperGone where it has ended or stands still."""
        wanted = SaveRequest(str(run.resolve()), str(directory.resolve()), step)
        try:
            self._channel.sendall(msgspec.json.encode(wanted) + b"\n")
            answer = msgspec.json.decode(self._answer(), type=SaveReply)
        except (HelperGone, OSError, *DECODE_ERRORS) as error:
            self._end()
            raise HelperGone from error
        if answer.refused is not None:
            raise StateError(answer.refused)
        if answer.failed is not None:
            raise OSError(*answer.failed)
        return directory / Path(answer.folder).name if answer.folder is not None else None

    def _answer(self) -> bytes:
        patience = ProgressTimeout(self.process.pid, still_s=STILL_LIMIT_S, limit_s=float("inf"))
        while not select.select([self._channel], [], [], LOOK_S)[0]:
            if patience.is_over():
                raise HelperGone
        return self._lines.readline()

    def _end(self) -> None:
        """Kills it and waits: the kernel closes the socket of a killed process before it releases
        the files that the process has locked."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a disk that stands still
            self.process.wait(END_LIMIT_S)

    def close(self) -> None:
        """Ends it."""
        self._lines.close()
        self._channel.close()
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve_checkpoints(descriptor: int, save: Callable[[SaveRequest], Path | None]) -> None:
    """The helper's end, until the supervisor closes the socket. Errors of `save` other than
    StateError and OSError end it, and stand in its log. Signals do not end it as long as the
    supervisor lives, also those for a whole group of processes: a supervisor without a helper loads
    torch first. Where the supervisor was killed it ends without an error."""
    from flowcheck.stages.service_loop import Signals

    with (
        Signals(os.getppid()),
        suppress(BrokenPipeError, ConnectionResetError),
        socket.socket(fileno=descriptor) as channel,
        channel.makefile("rb") as lines,
    ):
        channel.sendall(b"\n")
        for line in lines:
            try:
                saved = save(msgspec.json.decode(line, type=SaveRequest))
                answer = SaveReply(folder=str(saved) if saved is not None else None)
            except StateError as error:
                answer = SaveReply(refused=error.finding)
            except OSError as error:
                name = error.filename
                path = None if name is None else str(name)
                answer = SaveReply(failed=(error.errno, error.strerror or str(error), path))
            channel.sendall(msgspec.json.encode(answer) + b"\n")
