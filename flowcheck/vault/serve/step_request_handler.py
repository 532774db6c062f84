"""Answers HTTP requests for steps.

GET /steps                 every step: {"latest", "steps": [{"step", "durable", "in_memory"}],
                           "exact"}
GET /steps/N               {"step", "digest", "files": [{"name", "bytes", "sha256"}]}; N or latest
GET /steps/N/files/NAME    the file; Range, If-Range, If-None-Match, ETag = its sha256
GET /jobs                  the names of the jobs, if the server has several

With several jobs, the first three paths are below /jobs/K for job K.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog import checkpoint_downloads as findings
from flowcheck.findings.catalog.checkpoint_stores import DAMAGED_FILE
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import open_below
from flowcheck.vault.http_support.http_ranges import (
    Span,
    content_range,
    if_none_match,
    if_range_matches,
    part_heads,
    requested_ranges,
)
from flowcheck.vault.persist.checkpoint_ledger import DOUBTS_MAX
from flowcheck.vault.persist.checkpoint_listing import ListedFile
from flowcheck.vault.serve.guarded_request_handler import (
    BYTES,
    GuardedRequestHandler,
    GuardedServer,
)
from flowcheck.vault.serve.step_catalog import ReadableStep, StepBeingWritten, StepCatalog

SINGLE_JOB = ""
"""Stands for the job's name if the server has only one job, whose paths are not below /jobs."""
NUMBER_MAX = 999
"""Highest job number in a URL. A choice: the ring has readers for 64 jobs
(config/multi_job_config.py, JOBS_MAX)."""


def job_of(
    words: list[str], jobs: Mapping[str, StepCatalog]
) -> tuple[StepCatalog, list[str]] | Finding | None:
    """The job that a path belongs to: (its steps, the rest of the path). None: the path asks for
    the names of the jobs. A Finding: why the path belongs to no job."""
    if SINGLE_JOB in jobs:
        return jobs[SINGLE_JOB], words
    names = list(jobs)
    match words:
        case ["" | "jobs"]:
            return None
        case ["jobs", name, *rest] if name in jobs:
            return jobs[name], rest or ["steps"]
        case ["jobs", word, *rest] if word in map(str, range(1, min(len(names), NUMBER_MAX) + 1)):
            return jobs[names[int(word) - 1]], rest or ["steps"]
    return findings.SEVERAL_JOBS([f"/jobs/{name}/steps" for name in names])


if TYPE_CHECKING:
    from flowcheck.vault.serve.step_server import StepServer

BLOCK_BYTES = 4 << 20
"""Bytes of one sendfile(2). A choice: larger sees a stop later, smaller costs calls."""
LEAST_BYTES_S = 16 << 10
"""Bytes per second. A client that reads a whole answer more slowly is disconnected. A choice: a
gigabyte would take 18 hours."""
BOUNDARY = "flowcheck-8d1f6c0e2b7a"
"""Boundary of a multipart answer. Each part states its length, so that the bytes may contain it."""


class StepRequestHandler(GuardedRequestHandler):
    """Answers the requests of one connection, one after the other."""

    server: StepServer
    _catalogue: StepCatalog
    """The steps of the requested job."""

    @property
    def guard(self) -> GuardedServer:
        return self.server

    def answer_path(self, words: list[str], query: str) -> None:
        asked = job_of(words, self.server.jobs)
        if isinstance(asked, Finding):
            self._refuse(HTTPStatus.NOT_FOUND, asked)
            return
        if asked is None:
            self._json(HTTPStatus.OK, {"jobs": list(self.server.jobs)})
            return
        self._catalogue, words = asked
        match words:
            case ["" | "steps"]:
                self._json(HTTPStatus.OK, self._index())
            case ["steps", which]:
                self._step(which, None)
            case ["steps", which, "files", *name] if name:
                self._step(which, "/".join(name))
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, findings.UNKNOWN_PATH())

    def _index(self) -> dict[str, Any]:
        durable, memory = self._catalogue.durable(), self._catalogue.in_memory()
        doubts = self._catalogue.doubts
        steps = sorted({*durable, *memory})
        return {
            "latest": self._catalogue.newest(),
            "durable": max(durable, default=None),
            "exact": msgspec.to_builtins(self._catalogue.exact()),
            "steps": [
                {
                    "step": step,
                    "durable": step in durable,
                    "in_memory": step in memory,
                    "bytes": durable[step].listing.size_bytes if step in durable else None,
                    "digest": durable[step].listing.digest if step in durable else None,
                    "doubted": bool(doubts(durable[step].folder, durable[step].listing))
                    if step in durable
                    else None,
                }
                for step in steps
            ],
        }

    def _step(self, which: str, name: str | None) -> None:
        catalogue = self._catalogue
        step = catalogue.newest() if which == "latest" else _number(which)
        found = catalogue.find(step) if step is not None else None
        if found is None:
            there = sorted({*catalogue.durable(), *catalogue.in_memory()})
            told = findings.NO_STEPS(which)
            if there:
                told = findings.NO_SUCH_STEP(step=which, steps=there)
            self._refuse(HTTPStatus.NOT_FOUND, told)
        elif isinstance(found, StepBeingWritten):
            told_now = {"step": found.step, "writing": True}
            self._json(HTTPStatus.ACCEPTED, told_now, {"Retry-After": "1"})
        else:
            try:
                with catalogue.leases.reading(found.folder):
                    self._found(found, name)
            except FileNotFoundError:
                self._refuse(HTTPStatus.NOT_FOUND, findings.STEP_REMOVED(step))

    def _found(self, found: ReadableStep, name: str | None) -> None:
        told = found.listing
        if name is None:
            files = [
                {"name": one.name, "bytes": one.size_bytes, "sha256": one.sha256}
                for one in told.files
            ]
            late = self._catalogue.doubts(found.folder, told)[:DOUBTS_MAX]
            doubts = msgspec.to_builtins(late)
            own = {"step": told.step, "digest": told.digest, "doubts": doubts}
            self._json(HTTPStatus.OK, own | {"files": files})
            return
        file = next((one for one in told.files if one.name == name), None)
        if file is None:
            missing = findings.NO_SUCH_FILE(step=told.step, file=repr(name))
            self._refuse(HTTPStatus.NOT_FOUND, missing)
            return
        self._file(found.folder, file)

    def _file(self, folder: Path, file: ListedFile) -> None:
        told = {"ETag": f'"{file.sha256}"', "Accept-Ranges": "bytes"}
        if if_none_match(self.headers.get("If-None-Match", ""), file.sha256):
            self._head(HTTPStatus.NOT_MODIFIED, told)
            return
        asked, only_if = self.headers.get("Range"), self.headers.get("If-Range")
        parts = None
        if asked is not None and (only_if is None or if_range_matches(only_if, file.sha256)):
            parts = requested_ranges(asked, file.size_bytes) if self.command == "GET" else None
        if parts == []:
            size = {"Content-Range": f"bytes */{file.size_bytes}"}
            beyond = findings.RANGE_BEYOND_END()
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, beyond, told | size)
            return
        with os.fdopen(open_below(folder, file.name), "rb") as opened:
            if os.fstat(opened.fileno()).st_size != file.size_bytes:
                raise StateError(DAMAGED_FILE(file.name))
            if parts is None:
                own = {"Content-Type": BYTES, "Content-Length": str(file.size_bytes)}
                self._head(HTTPStatus.OK, told | own)
                self._send(opened.fileno(), (0, file.size_bytes))
            elif len(parts) == 1:
                own = {"Content-Type": BYTES, "Content-Length": str(parts[0][1] - parts[0][0])}
                place = {"Content-Range": content_range(parts[0], file.size_bytes)}
                self._head(HTTPStatus.PARTIAL_CONTENT, told | own | place)
                self._send(opened.fileno(), parts[0])
            else:
                self._several(opened.fileno(), parts, file, told)

    def _several(
        self, number: int, parts: list[Span], file: ListedFile, told: dict[str, str]
    ) -> None:
        """Sends several ranges as multipart/byteranges (RFC 9110, section 14.6)."""
        heads, end = part_heads(parts, file.size_bytes, BOUNDARY)
        size = sum(map(len, heads)) + sum(stop - begin for begin, stop in parts) + len(end)
        kind = f"multipart/byteranges; boundary={BOUNDARY}"
        own = {"Content-Type": kind, "Content-Length": str(size)}
        self._head(HTTPStatus.PARTIAL_CONTENT, told | own)
        for head, part in zip(heads, parts, strict=True):
            self.wfile.write(head)
            self._send(number, part)
        self.wfile.write(end)

    def _send(self, descriptor: int, span: Span) -> None:
        """Sends a span of a file with sendfile(2), without a copy in this process. Raises
        TimeoutError if the client reads more slowly than LEAST_BYTES_S."""
        if self.command == "HEAD":
            return
        at, end = span
        limit_s = self.server.timeout_s + (end - at) / LEAST_BYTES_S
        began_s = time.monotonic()
        self.wfile.flush()
        with os.fdopen(os.dup(descriptor), "rb") as file:
            while at < end:
                if time.monotonic() - began_s > limit_s:
                    raise TimeoutError
                sent = self.connection.sendfile(file, at, min(BLOCK_BYTES, end - at))
                if not sent:
                    raise ConnectionError("the file ended early")
                at += sent


def _number(word: str) -> Step | None:
    return Step(int(word)) if word.isascii() and word.isdigit() and len(word) < 19 else None
