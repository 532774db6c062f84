"""Stage: gives the changes of the replica to copies on other machines."""

from __future__ import annotations

import time
from contextlib import suppress

from flowcheck.config import JobConfig
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.replica_copies import COPIES_AT
from flowcheck.messages import Message, Note
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.replica_copies.copies_server import CopiesServer
from flowcheck.stages.replica_copies.copy_records import CopiesRecord, copies_file, write_record
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets

RECORD_S = 1.0
"""Seconds between two looks at what the replica rests on, and two records for `status`."""


class CopiesService:
    """A server in threads beside the stage's loop."""

    name = "copies"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.copies is not None, "the stage is started where it is stated"
        self._run, self._own = run, config.copies
        self._server: CopiesServer | None = None
        self._recorded_s = 0.0
        self._told_late = False

    def start(self, links: StageSockets) -> None:
        self._links = links
        self._server = CopiesServer(self._run, self._own, print)
        self._record()
        self._server.start()
        links.report(Note(stage=self.name, finding=COPIES_AT(self._server.url)))

    def work(self) -> int:
        if time.monotonic() - self._recorded_s > RECORD_S:
            self._record()
        return 0

    def _record(self) -> None:
        server = self._server
        assert server is not None
        self._recorded_s = time.monotonic()
        shared = server.shared
        with suppress(OSError, FlowCheckError):
            shared.assumed = (*doubts_of(self._run), *assumptions_of(self._run))
        if (why := server.why_not) is not None and not self._told_late:
            self._told_late = True
            self._links.report(Note(stage=self.name, finding=why))
        record = CopiesRecord(
            url=server.url,
            epoch="" if shared.ring is None else str(shared.ring.epoch),
            followers=shared.followers_now(),
            why_not=why,
        )
        write_record(copies_file(self._run), record)

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: the replica has another state."""
        if self._server is not None:
            self._server.shared.nudge()

    def drained(self) -> bool:
        return True

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            copies_file(self._run).unlink(missing_ok=True)
