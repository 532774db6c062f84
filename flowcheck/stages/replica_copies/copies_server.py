"""The HTTP server that gives the changes of a replica to its copies.

Requests are whole by themselves: a copy says where it is, so neither side has to remember the
other. A request for the next change is answered once there is one, or after POLL_S.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

import numpy as np

from flowcheck.config import CopiesConfig
from flowcheck.config.persist_serve_config import LOOPBACK
from flowcheck.errors import ConfigError, FlowCheckError, StateError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.findings.catalog.replica_copies import (
    COPIES_NOT_SHARDED,
    COPIES_NOTHING_YET,
    COPY_PATH,
    COPY_SUPERSEDED,
    NO_STATE_YET,
)
from flowcheck.findings.finding import Finding
from flowcheck.private_files import open_private
from flowcheck.replica.state_file.file_header import Commit, read_commit, read_description
from flowcheck.stages.job_state.job_life import life_of_chain
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.replica_copies.change_ring import ChangeRing, RingChange
from flowcheck.stages.replica_copies.copy_epoch import Epoch
from flowcheck.stages.replica_copies.copy_messages import (
    BLOCK_BYTES,
    AnswerKind,
    CopyAnswer,
    CopyPosition,
    CopyRequest,
    blocks,
    body_bytes,
    digest_of,
    encode_head,
    request_of,
)
from flowcheck.stages.replica_copies.copy_records import FOLLOWERS_MAX, Follower
from flowcheck.stages.replica_copies.given_state import given_state
from flowcheck.stages.replica_copies.next_change import next_change
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.http_support.bounded_http_server import BoundedHttpServer
from flowcheck.vault.http_support.tls_context import server_tls
from flowcheck.vault.serve.guarded_request_handler import BYTES, GuardedRequestHandler
from flowcheck.vault.serve.step_server import OVERLOAD_S, read_token
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob
from flowcheck.wire.training_job.training_spec import encode_spec, without_connections

POLL_S = 1.0
"""Seconds that a request waits for a change, half of the least `[gradients] timeout_s`. A choice:
longer finds a dead link later, shorter asks more often."""
LOOK_S = 0.02
"""Seconds between two looks for a change that nothing told of: what a lost nudge costs."""
LOOK_ALL_S = 0.5
"""Seconds between two looks at everything, as a replica that went back has no new change yet."""


@dataclass(slots=True)
class _Follows:
    """What is known of one copy, by its address."""

    position: CopyPosition
    last_s: float
    asking: int = 0
    sent_bytes: int = 0
    states: int = 0


@dataclass(slots=True)
class CopiesState:
    """What the threads of the server share."""

    run: RunDir
    ring: ChangeRing | None = None
    replica: mmap.mmap | None = None
    assumed: tuple[Finding, ...] = ()
    superseded: Epoch | None = None
    """A higher epoch that a copy has seen; None: none has told of one."""
    followers: dict[str, _Follows] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)
    seen: dict[int, float] = field(default_factory=dict)
    """{number of a change: when it was first seen}, of those that the ring holds."""

    def opened(self) -> ChangeRing:
        """The ring. Raises StateError while there is none."""
        if self.ring is None:
            with suppress(OSError, FlowCheckError):
                self.ring = ChangeRing.open(self.run.changes)
        if self.ring is None or not self.run.replica.exists():
            raise StateError(COPIES_NOTHING_YET(NO_STATE_YET()))
        if incarnation_of(self.run).step is None:
            raise StateError(COPIES_NOTHING_YET(NO_STATE_YET()))
        return self.ring

    def commit(self) -> Commit:
        """The replica's newest. Raises RingError or StateError where there is none."""
        path = self.run.replica
        if self.replica is None:  # one file for the chain's life
            with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            read_description(path, memory)
            self.replica = memory
        return read_commit(path, self.replica)

    def nudge(self) -> None:
        """Something may have changed."""
        with self.changed:
            self.changed.notify_all()

    def note_seen(self, changes: Sequence[RingChange]) -> None:
        """For how long a copy is behind."""
        now = time.monotonic()
        with self.lock:
            known = self.seen
            self.seen = {one.sequence: known.get(one.sequence, now) for one in changes}

    def followers_now(self) -> tuple[Follower, ...]:
        """Who follows, those that asked last first."""
        newest, tells = 0, time.monotonic()
        with suppress(OSError, FlowCheckError, ValueError):
            newest = self.commit().step
        with self.lock:
            order = sorted(self.followers.items(), key=lambda pair: -pair[1].last_s)
            self.followers = dict(order[:FOLLOWERS_MAX])
            return tuple(
                Follower(
                    peer=peer,
                    step=one.position.state[0],
                    lag_steps=max(0, newest - one.position.state[0]),
                    lag_s=self._lag_s(one, newest, tells),
                    sent_bytes=one.sent_bytes,
                    states=one.states,
                    silent_s=0.0 if one.asking else tells - one.last_s,
                )
                for peer, one in self.followers.items()
            )

    def _lag_s(self, one: _Follows, newest: int, now_s: float) -> float:
        if one.position.state[0] >= newest:
            return 0.0
        after = one.position.sequence if self.ring is not None else 0
        later = [since for number, since in self.seen.items() if number > after]
        return max(0.0, now_s - min(later, default=now_s))


class CopiesHandler(GuardedRequestHandler):
    """Answers the requests of one copy."""

    server: CopiesServer
    disable_nagle_algorithm = True  # a digest behind a block must not wait for its answer

    @property
    def guard(self) -> CopiesServer:
        return self.server

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Writes no line for what is as it should be: a copy asks each second."""
        if code != HTTPStatus.OK:
            super().log_request(code, size)

    def answer_path(self, words: list[str], query: str) -> None:
        """Answers a copy that is admitted."""
        if self.server.stopping:
            raise ConnectionError("the chain ends")
        match words:
            case ["training"]:
                self._training()
            case ["next"]:
                self._asked(request_of(query), self._next)
            case ["state"]:
                self._asked(request_of(query), self._state)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, COPY_PATH())

    def _asked(self, asked: CopyRequest, answer: Callable[[CopyRequest], None]) -> None:
        shared, peer = self.server.shared, str(self.client_address[0])
        with shared.lock:
            known = shared.followers.setdefault(peer, _Follows(asked.position, time.monotonic()))
            known.position, known.asking = asked.position, known.asking + 1
            if shared.ring is not None and asked.epoch > shared.ring.epoch:
                shared.superseded = max(asked.epoch, shared.superseded or asked.epoch)
        try:
            answer(asked)
        finally:
            with shared.lock:
                known.asking, known.last_s = known.asking - 1, time.monotonic()

    def _training(self) -> None:
        job = training_of(self.server.shared.run)
        if job is None:
            raise StateError(COPIES_NOTHING_YET(NO_STATE_YET()))
        if job.kind is not FollowedData.GRADIENTS:
            self._refuse(HTTPStatus.NOT_FOUND, COPIES_NOT_SHARDED())
            return
        spec = without_connections(job) if isinstance(job, LearnedJob) else job
        commit = self._commit()
        own = self._head_of(AnswerKind.TRAINING, commit, training=encode_spec(spec))
        self._give(own, [])

    def _next(self, asked: CopyRequest) -> None:
        shared, until_s = self.server.shared, time.monotonic() + POLL_S
        while True:
            ring = shared.opened()
            last, commit = ring.last, self._commit()  # before the changes (`present_past`)
            changes = ring.changes()
            shared.note_seen(changes)
            newest = commit.step, commit.digest.hex()
            place = newest, changes, ring.source, asked.position
            found = next_change(*place, tainted=commit.tainted)
            left_s = until_s - time.monotonic()
            if found.kind is not AnswerKind.NOTHING or left_s <= 0 or self.server.stopping:
                break
            del changes, found
            self._await_change(ring, last, min(until_s, time.monotonic() + LOOK_ALL_S))
        change = found.change
        if change is None or change.payload is None:
            self._give(self._head_of(found.kind, commit, path=found.path), [])
            return
        life = life_of_chain(shared.run)
        told = {"line": change.line, "sequence": change.sequence, "incarnation": change.incarnation}
        told["life"] = life if life is not None and life.number == change.incarnation else None
        first = min(asked.first, -(-change.payload.size // BLOCK_BYTES))
        sizes = {"parts": (change.payload.size,), "first": first}
        own = self._head_of(AnswerKind.CHANGE, commit, **told, **sizes)
        self._give(own, [change.payload], lambda: ring.is_held(change))

    def _await_change(self, ring: ChangeRing, last: int, until_s: float) -> None:
        shared = self.server.shared
        with shared.changed:
            while ring.last == last and not self.server.stopping:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                shared.changed.wait(min(LOOK_S, left_s))

    def _state(self, asked: CopyRequest) -> None:
        shared = self.server.shared
        last = shared.opened().last  # before the state: what follows it has later numbers
        life = life_of_chain(shared.run)
        with given_state(shared.run.replica) as given:
            commit = self._commit()
            if given.tainted:
                self._give(self._head_of(AnswerKind.TAINTED, commit), [])
                return
            sections = tuple((n, a.dtype.str, a.size) for n, a in given.sections.items())
            parts = [*(a.view(np.uint8) for a in given.sections.values()), given.module]
            numbers = [
                c.sequence for c in shared.opened().changes() if c.line.behind == given.state
            ]
            own = self._head_of(
                AnswerKind.STATE,
                commit,
                parts=tuple(part.size for part in parts),
                state=given.state,
                sections=sections,
                description=given.description,
                sequence=max(numbers, default=last),
                life=life if life == life_of_chain(shared.run) else None,
            )
            self._give(own, parts)
        with shared.lock:
            shared.followers[str(self.client_address[0])].states += 1

    def _commit(self) -> Commit:
        return self.server.shared.commit()

    def _head_of(self, kind: AnswerKind, commit: Commit, **more: object) -> CopyAnswer:
        shared = self.server.shared
        ring, newest = shared.opened(), (commit.step, commit.digest.hex())
        own = {"kind": kind, "epoch": ring.epoch, "source": ring.source, "place": ring.place}
        return CopyAnswer(**own, newest=newest, assumed=shared.assumed, **more)  # type: ignore[arg-type]

    def _give(
        self,
        answer: CopyAnswer,
        parts: Sequence[np.ndarray],
        held: Callable[[], bool] = lambda: True,
    ) -> None:
        """held: whether the bytes are still what they were: a digest is sent of no others."""
        head = encode_head(answer)
        told = {"Content-Type": BYTES, "Cache-Control": "no-store"}
        self._head(HTTPStatus.OK, told | {"Content-Length": str(body_bytes(answer, len(head)))})
        if self.command == "HEAD":
            return
        self.connection.settimeout(self.server.timeout_s)
        self.wfile.write(head)
        sent = len(head)
        for part in parts:
            for begin, end in blocks(part.size, answer.first):
                block = part[begin:end]
                digest = digest_of(block)
                self.connection.sendall(block.data)
                if not held():
                    raise ConnectionError("a later change took its place")
                self.connection.sendall(digest)
                sent += block.size + len(digest)
        shared = self.server.shared
        with shared.lock:
            if (known := shared.followers.get(str(self.client_address[0]))) is not None:
                known.sent_bytes += sent


class CopiesServer(BoundedHttpServer):
    """Listens from its construction on and serves between `start` and `stop`."""

    def __init__(self, run: RunDir, config: CopiesConfig, say: Callable[[str], None]) -> None:
        """say: writes a line to the log. Raises ConfigError if the server cannot listen, or if the
        token or TLS files cannot be used."""
        self.shared = CopiesState(run)
        self.timeout_s, self.say = config.timeout_s, say
        self.token = read_token(config.token_file) if config.token_file is not None else None
        self.is_loopback = config.host in LOOPBACK
        self.stopping = False
        self._refused_s = -OVERLOAD_S
        tls = server_tls(config, "copies", say)
        try:
            super().__init__(config.host, config.port, config.connections, CopiesHandler, tls)
        except OSError as error:
            right = downloads.CANNOT_LISTEN(host=config.host, error=error.strerror)
            raise ConfigError("copies.port", config.port, right) from error

    def stop(self) -> None:
        self.stopping = True
        self.shared.nudge()
        super().stop()

    @property
    def is_overloaded(self) -> bool:
        """Whether clients were refused lately. Connections then end after each answer."""
        return time.monotonic() - self._refused_s < OVERLOAD_S

    def refused(self) -> None:
        self._refused_s = time.monotonic()

    @property
    def why_not(self) -> Finding | None:
        """Why copies should not follow; None: nothing stands against it."""
        ring, later = self.shared.ring, self.shared.superseded
        if ring is None or later is None or later <= ring.epoch:
            return None
        return COPY_SUPERSEDED(epoch=str(later), own=str(ring.epoch))
