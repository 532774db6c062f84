"""Stage: the updater of a replica that is a copy of another chain's.

It takes the place of the `update` stage where the job file names chains in `[gradients]`: the same
replica and the same records of its steps, so that its steps are saved, served, audited and restored
as any others. A change is committed only if it leads to the state that the other chain had; its
line is written behind that, and its number last.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.replica_copies import (
    COPIES_NOTHING_YET,
    COPY_AHEAD,
    COPY_ANSWER,
    COPY_AWAITED,
    COPY_BROUGHT,
    COPY_DAMAGED,
    COPY_DIFFERED,
    COPY_DIFFERS,
    COPY_EPOCH,
    COPY_EPOCH_TWICE,
    COPY_FOLLOWS,
    COPY_NO_SOURCE,
    COPY_SOURCE_GONE,
    COPY_STATE_DIGEST,
    COPY_TAINTED,
    COPY_TAKES_NOTHING,
    COPY_TOO_SLOW,
    COPY_WENT_BACK,
)
from flowcheck.findings.catalog.replica_state_errors import STEP_DIFFERS
from flowcheck.findings.finding import Finding
from flowcheck.messages import Message, Note, StepApplied
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.step_journal.journal_records import ChangeKind
from flowcheck.replica.taint import tainted_elements
from flowcheck.replica.torch_without_compiler import load_torch
from flowcheck.stages.copy_updater.copied_replica import CopiedReplica, form_of
from flowcheck.stages.copy_updater.copy_fetcher import CopyFetcher, Fetched, Want
from flowcheck.stages.copy_updater.epoch_fence import EpochFence
from flowcheck.stages.job_state.given_checkpoint_request import refuse_request, take_request
from flowcheck.stages.job_state.job_life import JobLife, life_of, write_copy_life
from flowcheck.stages.job_state.lifecycle_state_machines import ReplicaState
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.replica_copies.copy_messages import AnswerKind, CopyPosition
from flowcheck.stages.replica_copies.copy_records import (
    CopyRecord,
    copy_file,
    read_copy,
    write_record,
)
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.step_numbers import Step
from flowcheck.wire.training_job.training_spec import TrainingSpec, decode_spec, encode_spec

RECORD_S = 0.5
"""Seconds between two records for `status`."""
AGAIN_S = 1.0
"""Seconds before the chain is asked again where the copy has to wait for it."""
STATE_AGAIN_S = 2.0
"""Least seconds from one whole state to the next: a copy that is too slow must not fill the link
with them. A choice."""
LOOK_S = 5.0
"""Seconds between two questions for the newest step alone, of a copy that follows no more."""
NOWHERE: StateId = Step(0), "0" * 32
"""The position of a copy that has no state."""


class ChangePosition:
    """Which change of which life of a chain was applied last, in shared memory beside the replica:
    both exist or neither does. A kill may leave it one change early, never late."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            write_atomically(path, bytes(24), durable=False)
        self._raw = np.memmap(path, np.uint8, "r+", shape=(24,))

    @property
    def value(self) -> tuple[str, int]:
        """(life of a chain, number of the change); ("", 0): none."""
        source = bytes(self._raw[:16])
        number = int(self._raw[16:].view(np.uint64)[0])
        return ("", 0) if not any(source) else (source.hex(), number)

    def set(self, source: str, number: int) -> None:
        """Number 0 of another life first: it is no number of this one."""
        if self.value[0] != source:
            self._raw[16:].view(np.uint64)[0] = 0
            self._raw[:16] = np.frombuffer(bytes.fromhex(source), np.uint8)
        self._raw[16:].view(np.uint64)[0] = number

    def close(self) -> None:
        del self._raw


class CopyService:
    """The only writer of the copy."""

    name = "update"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.gradients is not None and config.optimizer is not None
        self._run, self._config, self._own = run, config, config.gradients
        self._copied: CopiedReplica | None = None
        self._records: StepLog | None = None
        self._kept: KeptSteps | None = None
        self._fetcher: CopyFetcher | None = None
        self._waits_s = 0.0
        """When the chain is asked again (time.monotonic); 0.0: it is being asked."""
        self._why_waits: Finding | None = None
        self._failed_at: StateId | None = None
        self._behind_s = self._recorded_s = self._state_s = 0.0
        self._look_s = self._start_s = time.monotonic()
        self._changes = self._states = 0
        self._told: set[str] = set()
        self._followed = ""
        self._assumed: tuple[Finding, ...] = ()
        self._life: JobLife | None = None

    def start(self, links: StageSockets) -> None:
        self._links = links
        load_torch()
        assert self._config.optimizer is not None
        check_optimizer(self._config.optimizer)
        self._lifecycle = UpdateLifecycle(self._run, self._say)
        self._differs = self._lifecycle.part.state is ReplicaState.STOPPED
        self._fence = EpochFence(self._run)
        self._life = life_of(self._run)
        self._position = ChangePosition(self._run.memory / "copy-position")
        self._fetcher = CopyFetcher(self._own, self._fence)
        if (known := read_copy(self._run)) is not None:  # of a killed updater
            self._fetcher.link.newest = known.newest
        if self._run.training_spec.exists():
            self._know(decode_spec(self._run.training_spec.read_bytes()))
            if self._copied is not None and self._copied.replica is not None:
                self._opened()
        if self._copied is not None and self._copied.is_damaged():
            self._mend()
        elif not self._differs:
            self._ask()
        self._record()

    def _know(self, training: TrainingSpec) -> None:
        form = form_of(training, self._config)
        self._assumed = training.assumed
        self._copied = CopiedReplica(self._run, self._config, form)
        self._fetching.expect(form.layout.gradient_bytes, form.section_bytes)

    def _opened(self) -> None:
        """There is a replica."""
        assert self._copied is not None and self._copied.replica is not None
        replica = self._copied.replica
        if self._records is None:
            self._records = StepLog(self._run, self._config, replica)
            if self._records.last_step() != replica.step:
                self._records.forget_after(Step(max(0, replica.step - 1)), "before-copy")
                self._records.write(replica, 0.0, None)
        if self._kept is None:
            self._kept = KeptSteps(self._run, self._config, replica, self._say, gathered=False)
        self._lifecycle.enter(ReplicaState.STOPPED if self._differs else ReplicaState.APPLYING, 1)

    @property
    def _fetching(self) -> CopyFetcher:
        assert self._fetcher is not None, "made in `start`"
        return self._fetcher

    @property
    def _at(self) -> CopyPosition:
        state = None if self._copied is None else self._copied.state
        return CopyPosition(state or NOWHERE, *self._position.value)

    def _ask(self) -> None:
        """For what leads on from here."""
        self._waits_s = 0.0
        if self._copied is None:
            self._fetching.ask(Want.TRAINING)
        elif self._copied.replica is None:
            self._fetching.ask(Want.STATE, self._at)
        else:
            self._fetching.ask(Want.NEXT, self._at)

    def _mend(self) -> None:
        """The memory here is damaged, whatever led to it: only a whole state is right."""
        self._differs, self._failed_at = False, None
        self._why_waits = COPY_DAMAGED(source=self._fetching.link.url, step=self._at.state[0])
        self._say(self._why_waits)
        self._fetching.ask(Want.STATE, self._at)

    def _wait(self, why: Finding) -> None:
        """The chain is asked again in a while."""
        self._why_waits = why
        self._fetching.ask(Want.NOTHING)
        self._waits_s = time.monotonic() + AGAIN_S
        self._tell_once(why)

    def work(self) -> int:
        self._look()
        fetched = self._fetching.take()
        if fetched is None or self._differs:
            return 0
        if not self._fence.still_admits(fetched.answer):
            self._ask()
            return 1
        try:
            self._came(fetched)
        except FlowCheckError as error:
            self._refused(fetched, error.finding)
        self._record()
        return 1

    def _came(self, fetched: Fetched) -> None:
        answer = fetched.answer
        self._assume(answer.assumed)
        match answer.kind:
            case AnswerKind.TRAINING:
                self._take_training(answer.training)
            case AnswerKind.STATE:
                self._take_state(fetched)
            case AnswerKind.CHANGE:
                self._take_change(fetched)
            case AnswerKind.ELSEWHERE:
                self._go_elsewhere(fetched)
            case AnswerKind.TAINTED:
                self._wait(COPY_TAINTED(source=fetched.url, step=answer.newest[0]))
            case AnswerKind.NOTHING:
                self._failed_at = None
                self._settled()

    def _take_training(self, raw: bytes) -> None:
        spec = decode_spec(raw)
        copied = msgspec.structs.replace(spec, assumed=self._assumed, copied=True)
        try:
            self._know(copied)
        except (ValueError, ArithmeticError, LookupError, TypeError, MemoryError) as error:
            what = f"a training job that cannot be ({error!s:.60})"  # whatever was sent
            raise StateError(COPY_ANSWER(what=what)) from error
        write_atomically(self._run.training_spec, encode_spec(copied))
        self._ask()

    def _take_state(self, fetched: Fetched) -> None:
        copied, answer = self._copied, fetched.answer
        assert copied is not None, "it is asked for behind the training"
        began_s, had = time.perf_counter(), copied.state
        self._of_life(None)  # until the state is there: those of before may be another life's
        copied.take_state(answer, fetched.parts, fetched.url)
        self._of_life(answer.life)
        replica = copied.replica
        assert replica is not None
        self._position.set(answer.source, answer.sequence)
        self._states += 1
        self._state_s = time.monotonic() + STATE_AGAIN_S
        if had is not None and self._records is not None:
            self._records.forget_after(Step(max(0, replica.step - 1)), f"copy-{answer.epoch}")
            self._records.write(replica, time.perf_counter() - began_s, None)
        self._opened()
        size = sum(answer.parts)
        self._say(COPY_BROUGHT(step=replica.step, bytes=size, source=fetched.url))
        self._follows(fetched)
        self._tell(time.perf_counter() - began_s)
        self._ask()

    def _take_change(self, fetched: Fetched) -> None:
        copied, answer, records = self._copied, fetched.answer, self._records
        line = answer.line
        assert copied is not None and line is not None and records is not None
        if answer.incarnation > answer.epoch.incarnation:
            raise StateError(COPY_ANSWER(what="a change of a later epoch than its chain's"))
        known = self._life
        if answer.life is not None or known is None or known.number != answer.incarnation:
            self._of_life(answer.life)  # first: what is there led on to it
        began_s = time.perf_counter()
        if line.kind is ChangeKind.STEP and self._kept is not None:
            self._kept.before_step(fetched.parts[0], line.used(len(copied.form.layout.parameters)))
        copied.change(line, fetched.parts[0])
        replica, seconds = copied.replica, time.perf_counter() - began_s
        assert replica is not None
        if line.kind is ChangeKind.STEP:
            records.write(replica, seconds, fetched.parts[0])
        else:
            records.write_newest_again(replica)
        self._position.set(answer.source, answer.sequence)
        self._changes += 1
        self._failed_at = None
        self._follows(fetched)
        self._settled()
        self._tell(seconds)

    def _of_life(self, life: JobLife | None) -> None:
        """Keeps which life of the training job the replica's states are of."""
        if life != self._life:
            write_copy_life(self._run, life)
            self._life = life

    def _settled(self) -> None:
        self._why_waits = None
        self._told.clear()

    def _follows(self, fetched: Fetched) -> None:
        """Tells the operator which chain this is a copy of, once for each."""
        answer = fetched.answer
        if self._followed != answer.source and self._copied is not None:
            self._followed = answer.source
            told = {"source": fetched.url, "epoch": str(answer.epoch)}
            self._say(COPY_FOLLOWS(step=self._at.state[0], **told))

    def _go_elsewhere(self, fetched: Fetched) -> None:
        """No change leads on from here: to a step that is kept and is on the chain's path, or to a
        whole state."""
        copied, answer = self._copied, fetched.answer
        assert copied is not None and copied.replica is not None and self._records is not None
        replica, newest = copied.replica, answer.newest[0]
        for known in reversed(answer.path):
            if known.state == copied.state or copied.holds(known.state):
                step, had = known.state[0], replica.step
                if known.state != copied.state:
                    self._records.forget_after(step, f"copy-{answer.epoch}")
                    replica.go_back(step)
                    told = {"source": fetched.url, "newest": had, "step": step}
                    self._say(COPY_WENT_BACK(**told))
                    self._tell(0.0)
                self._position.set(answer.source, known.sequence)
                self._ask()
                return
        another = answer.source != self._position.value[0]
        if another and newest < replica.step:
            # A chain that began anew is no reason to give up the newest step that anybody has.
            self._wait(COPY_AHEAD(source=fetched.url, step=newest, own=replica.step))
            return
        if time.monotonic() < self._state_s:
            self._wait(COPY_TOO_SLOW(source=fetched.url, step=replica.step))
            return
        self._fetching.ask(Want.STATE, self._at)

    def _refused(self, fetched: Fetched, why: Finding) -> None:
        """What came cannot be taken. Its bytes are fetched anew once; what fails again at the same
        state is not a matter of bytes."""
        at = self._at.state
        if why.is_any_of(COPY_STATE_DIGEST) or self._failed_at != at:
            self._failed_at = at
            self._wait(why)
            return
        if not why.is_any_of(STEP_DIFFERS):
            self._wait(why)
            return
        if self._copied is not None and self._copied.is_damaged():
            self._mend()
            return
        self._differs = True
        self._fetching.ask(Want.NOTHING)
        self._why_waits = COPY_DIFFERS(source=fetched.url, step=at[0], why=why)
        self._say(self._why_waits)
        self._lifecycle.enter(ReplicaState.STOPPED, 1)

    def _assume(self, assumed: tuple[Finding, ...]) -> None:
        """The copy rests on what its chain's replica does, as of now."""
        if assumed == self._assumed:
            return
        self._assumed = assumed
        if self._copied is not None:
            training = msgspec.structs.replace(self._copied.form.training, assumed=assumed)
            self._copied.form = self._copied.form._replace(training=training)
            write_atomically(self._run.training_spec, encode_spec(training))

    def _look(self) -> None:
        """At everything but what comes."""
        fetching = self._fetching
        if self._kept is not None:
            self._kept.tell()
        while fetching.findings:
            self._say(fetching.findings.popleft())
        if self._waits_s and time.monotonic() >= self._waits_s:
            self._ask()
        if self._differs and time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + LOOK_S
            self._fetching.ask(Want.TRAINING)  # for the newest step, which comes with it
        request = take_request(self._lifecycle, self._at.state[0])
        if request is not None:
            refuse_request(self._lifecycle, request, self._at.state[0], COPY_TAKES_NOTHING())
        if time.monotonic() - self._recorded_s > RECORD_S:
            self._record()

    def _record(self) -> None:
        now_s = self._recorded_s = time.monotonic()
        link, step = self._fetching.link, self._at.state[0]
        lag = max(0, link.newest - step)
        self._behind_s = (self._behind_s or now_s) if lag else 0.0
        why = self._why_not(lag)
        if why is not None and (not link.answers or why.is_any_of(COPY_AWAITED)):
            self._tell_once(why)
        epoch = self._fence.epoch
        record = CopyRecord(
            source=link.url,
            epoch=str(epoch) if epoch.incarnation else "",
            answers=link.answers,
            newest=Step(max(link.newest, step)),
            lag_steps=lag,
            lag_s=now_s - self._behind_s if lag else 0.0,
            received_bytes=self._fetching.received_bytes,
            changes=self._changes,
            states=self._states,
            blocks_again=self._fetching.blocks_again,
            refused=self._fence.refused,
            gradient_bytes=0 if self._copied is None else self._copied.form.layout.gradient_bytes,
            why_not=why,
            differs=self._differs,
        )
        write_record(copy_file(self._run), record)

    def _why_not(self, lag: int) -> Finding | None:
        link = self._fetching.link
        if self._differs:
            return self._why_waits or COPY_DIFFERS(
                source=link.url, step=self._at.state[0], why=COPY_DIFFERED()
            )
        if link.why_not is None:
            return self._why_waits
        if link.why_not.is_any_of(COPY_EPOCH, COPY_EPOCH_TWICE):
            return link.why_not
        if link.why_not.is_any_of(COPIES_NOTHING_YET):
            return COPY_AWAITED(link.url)
        if self._copied is None or self._copied.replica is None:
            return COPY_NO_SOURCE(source=link.url, why=link.why_not)
        told = {"source": link.url, "why": link.why_not, "step": self._at.state[0]}
        silent = round(time.monotonic() - max(link.answer_s, self._start_s))
        return COPY_SOURCE_GONE(lag=lag, silent=silent, **told)

    def _tell(self, seconds: float) -> None:
        assert self._copied is not None and self._copied.replica is not None
        replica = self._copied.replica
        message = StepApplied(
            step=replica.step,
            seconds=seconds,
            digest=replica.digest,
            tainted=tainted_elements(replica.tainted),
        )
        self._links.report(message)
        if self._config.copies is not None:
            self._links.send("copies", message)
        if self._records is not None and (lack := self._records.unwritten_lines()) is not None:
            self._links.report(lack)

    def _tell_once(self, why: Finding) -> None:
        """Of each kind once, until a change is applied again."""
        if why.code not in self._told:
            self._told.add(why.code)
            self._say(why)

    def _say(self, found: Finding | None) -> None:
        if found is not None:
            self._links.report(Note(stage=self.name, finding=found))

    def on_message(self, message: Message) -> None:
        """Nothing is waited for."""

    def drained(self) -> bool:
        """What the chain has more of is not waited for."""
        return True

    def stop(self) -> None:
        if self._fetcher is not None:
            self._record()
            self._fetcher.close()
            self._position.close()
        if self._kept is not None:
            self._kept.close()
        if self._records is not None:
            self._records.close()
        if self._copied is not None:
            self._copied.close()
