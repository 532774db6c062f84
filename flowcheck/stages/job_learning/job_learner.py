"""Reads the staged messages again as they grow until they prove a job; flows of no job are
ignored."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import temporary_path
from flowcheck.findings.catalog.job_selection_reasons import NO_READING_YET
from flowcheck.findings.catalog.nccl_transport import NO_WRITES
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import PLAN_UNKNOWN
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.extraction.staged_snapshot import staged_snapshot_of
from flowcheck.plane.shared_memory.flow_table import flow_key
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.private_files import PRIVATE_FILE_MODE
from flowcheck.stages.job_learning.job_selection import JobSelector
from flowcheck.stages.job_learning.proved_job import ProvedJob
from flowcheck.stages.job_learning.reading_process import (
    NOTHING_TO_MAKE,
    ReadingProcess,
    ToMake,
)
from flowcheck.stages.job_learning.stream_reading import (
    NO_KNOWN_JOB,
    KnownJob,
    ReadingOutcome,
    ReadingTerms,
    StatedStart,
)
from flowcheck.stages.job_state.gathered_parameters import sharded_optimizer_of, unit_block_bytes_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.staged_messages.silent_mirror_points import SilentMirrorPoints
from flowcheck.stages.staged_messages.staging_space import completed_messages
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.reading import Awaited
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import LearnedJob, decode_job
from flowcheck.wire.training_job.operator_statements import OperatorStatement


def ignore_flows(
    extractors: Sequence[Extractor],
    names: Sequence[Mapping[FlowKey, JoinedFlow]],
    flows: Sequence[FlowKey],
) -> int:
    """From now on what comes of these flows is counted and not kept; returns how many they are.
    What is staged of them may be placed: it has no home. names: [mirror point] what its flows are
    called among `flows`.
    """
    if not flows:
        return 0
    unwanted = set(flows)
    left: set[FlowKey] = set()
    for extractor, called in zip(extractors, names, strict=True):
        states = extractor.staging.plans()["state"]
        for index, record in enumerate(extractor.flows.flows()):
            own = called.get(flow_key(record))
            if own is not None and own.flow in unwanted and states[index] == PLAN_UNKNOWN:
                extractor.ignore(index)
                left.add(own.flow)
    return len(left)


GROWTH = 1.25
"""Factor. The stream is read again once so many more messages are there: all readings together cost
at most five times the last one (1 / (1 - 1/1.25)). A choice: smaller learns sooner and costs
more."""
AWAITED_GROWTH, AWAITED_EXCESS = 4.0, 1.25
"""Factors, of the whole messages that were there when a reading had told what it awaits, and of
those that will be there when it has come: at the smaller of both it is read all the same. A guard
where it never comes so, as when a collective took another protocol. A choice: smaller costs
readings that tell nothing."""
MESSAGES_PER_AWAITED = 2
"""Of all flows, for one that is awaited: each has a clear-to-send."""
MESSAGES_MIN = 4
"""Messages before the first reading. A choice: of fewer nothing is learned."""
PAUSE_PER_READING_TIME = 1
"""Times the last reading took, before the next one, unless twice as many messages are there:
readings take half of the time at most."""
QUIET_S = 5.0
"""Seconds. A job that sends nothing for so long may have ended, or died, before it showed all its
habits: what there is of it is read whatever it is, and with those of its incarnation before. A
choice: longer learns a short job later, shorter reads at each pause."""


class JobLearner:
    """Reads the staged messages again as they grow, until they prove a job."""

    def __init__(
        self,
        run: RunDir,
        release: NcclEra | None = None,
        clock: Callable[[], float] = time.monotonic,
        stated: OperatorStatement | None = None,
        prepare: Callable[[ShardSize], None] | None = None,
        own_pace: Collection[int] = (),
    ) -> None:
        """release: NCCL's, and stated: what else the job file states. prepare: called, in the
        process of a reading, to make the shard of a job; own_pace: rings whose frames wait for the
        chain, as those of a file do, and may be far behind the others'."""
        self._own_pace = frozenset(own_pace)
        self._prepare = prepare
        self._stated = stated
        self._wanted: JobSelector | None = None
        self._run, self._release, self._clock = run, release, clock
        self._points = SilentMirrorPoints(clock)
        self._grew = (-1, clock())
        """Messages staged, and since when it is so many."""
        self._told = True
        self._publish_unread(unread=False)
        self._read_at = 0
        self._only: Sequence[set[int]] | None = None
        """As `learn` takes it, of the last reading."""
        self._not_before_s = 0.0
        self._last_word = False
        """The last reading took it that nothing more comes."""
        self._read_quiet = False
        """The last reading was one of a stream that had paused."""
        self._reading: ReadingProcess | None = None
        self._making: tuple[ToMake, ReadingProcess] | None = None
        """(what it is, the reading that makes it) of initial weights and a shard as large: they
        are all there long before the job is told."""
        self._proof: tuple[ReadingOutcome, ReadingProcess] | None = None
        """A job that was told, whose weights or shard are still being made."""
        self._weights_at_once = False
        """They could not be made behind an outcome: the next one tells why."""
        self._awaited: Awaited | None = None
        """What the last reading waits for."""
        self._look_at = 0
        """Whole messages staged before which what is awaited cannot have come."""
        self._unless_awaited = 0
        """Whole messages staged at which it is not awaited any longer."""
        self.why_not: tuple[Finding, ...] = (NO_WRITES(),)
        self.joining = False
        """By the last reading a job that is known runs, and was not joined yet."""
        self._left_out = 0

    @property
    def busy(self) -> bool:
        """A reading has begun whose outcome was not taken yet, or what its job needs is made."""
        return self._reading is not None or self._proof is not None

    def read_all(self, extractors: Sequence[Extractor]) -> bool:
        """What is staged was all there when the last reading began, and it read to the end."""
        complete = completed_messages(extractors, self._only)
        return not complete or (self._last_word and complete <= self._read_at)

    def known(self) -> LearnedJob | None:
        """The job an earlier life of this process wrote."""
        path = self._run.learned_job
        return decode_job(path.read_bytes()) if path.exists() else None

    def names(self) -> list[dict[FlowKey, JoinedFlow]]:
        """[mirror point] what its flows are called in the learned job."""
        path = self._run.learned_folder / "names"
        if not path.exists():
            return []
        kept = msgspec.msgpack.decode(
            path.read_bytes(), type=list[list[tuple[FlowKey, JoinedFlow]]]
        )
        return [dict(own) for own in kept]

    def learn(
        self,
        extractors: Sequence[Extractor],
        *,
        at_once: bool,
        hurry: bool = False,
        only: Sequence[set[int]] | None = None,
        before: LearnedJob | None = None,
        known: KnownJob = NO_KNOWN_JOB,
        wait_s: float = 0.0,
        wanted: JobSelector | None = None,
    ) -> ProvedJob | None:
        """The job once it is proved; None until then.

        at_once: nothing more comes, or there is no room for it: read whatever is new; hurry: there
        is little room: read again as soon as anything is new; only: [ring] indices of the flows
        to read, by default all; before: the job whose next incarnation this may be; known: of one
        that may be joined midstream; wait_s: for a reading under way; wanted: which of
        several jobs.
        """
        if self._proof is not None:
            return self._proved(wait_s)
        complete = completed_messages(extractors, only)
        over = self._over(extractors)
        if self._reading is None:
            quiet = at_once or self._quiet(extractors)
            came = self._awaited_came(extractors, complete)
            if came or self._due(complete, at_once=at_once, hurry=hurry, quiet=quiet):
                self._awaited = None
                self._read_at, self._last_word, self._read_quiet = complete, at_once, quiet
                self._wanted, self._only = wanted, only
                hasty = not (quiet or hurry)
                self._begin(extractors, only, before, known, over, hasty=hasty)
        read = complete <= self._read_at and (self._read_quiet or self._last_word)
        self._publish_unread(unread=self._reading is not None or (complete > 0 and not read))
        if self._reading is None:
            return None
        if not self._reading.wait(wait_s):
            return None
        reading, self._reading = self._reading, None
        found, took_s = reading.outcome()
        self._not_before_s = self._clock() + PAUSE_PER_READING_TIME * took_s
        if found.goes_on and found.weights_source is not None:
            self._goes_on_making(ToMake(found.weights_source, found.shard), reading)
        lacks_weights = found.weights is None and found.weights_source is None
        if found.job is None or (lacks_weights and not found.job.awaits_base):
            self.why_not = found.why_not or (NO_READING_YET(),)
            self.joining = found.joining
            self._awaited, self._look_at, self._unless_awaited = found.awaited, 0, 0
            left = ignore_flows(extractors, found.names, found.others)
            if left and only is not None:
                # Fewer messages of these flows will be staged than were read: no count tells how
                # many of them are new.
                self._read_at, self._last_word, self._read_quiet = 0, False, False
            self._left_out += left
            return None
        self._proof = found, reading
        return self._proved(0.0)

    def _goes_on_making(self, what: ToMake, reading: ReadingProcess) -> None:
        """That reading makes weights, unless they are those that another one makes."""
        if self._making is not None and self._making[0].weights_source != what.weights_source:
            self._stop_making()
        if self._making is None:
            self._making = what, reading

    def _stop_making(self) -> None:
        """What the killed reading made goes; another one may be making what its outcome told."""
        if self._making is not None:
            what, reading = self._making
            reading.kill()
            place = self._run.read_weights(what.weights_source)
            place.unlink(missing_ok=True)
            temporary_path(place).unlink(missing_ok=True)
        self._making = None

    def _proved(self, wait_s: float) -> ProvedJob | None:
        """The job that was told, once all that it needs is there; None: not within so many
        seconds, or it cannot be had."""
        assert self._proof is not None
        found, reading = self._proof
        makers = [reading] if found.goes_on else []
        if found.weights_source is not None and self._making is not None:
            makers.append(self._making[1])
        made = [maker.made(wait_s) for maker in makers]
        if False in made:
            self.forget()
            self._weights_at_once = True
            return None
        if None in made:
            return None
        weights: NDArray[np.uint8] | Path | None = found.weights
        if found.weights_source is not None:
            weights = self._run.read_weights(found.weights_source)
        self._making = self._proof = None
        self.forget()
        assert found.job is not None
        return ProvedJob(
            job=found.job,
            weights=weights,
            names=found.names,
            numbers=found.numbers,
            flows=found.flows,
            other_jobs=found.other_jobs,
            auxiliary_weights=found.auxiliary_weights,
            weights_differing=found.weights_differing,
        )

    def forget(self) -> None:
        """What was read is over, and may be freed: what is read next is another job."""
        self._read_at, self._not_before_s, self._last_word = 0, 0.0, False
        self._read_quiet = False
        self._awaited = None
        self._weights_at_once = False
        self._publish_unread(unread=False)
        self.close()

    def take_ignored_flow_count(self) -> int:
        """Flows found since the last call to be of no job, of which nothing more is kept."""
        left, self._left_out = self._left_out, 0
        return left

    def close(self) -> None:
        """No reading goes on."""
        unfinished = self._making is not None or self._proof is not None
        if self._reading is not None:
            self._reading.kill()
        if self._proof is not None:
            self._proof[1].kill()
        self._stop_making()
        self._reading = self._proof = None
        if unfinished:
            self._run.remove_read_weights()
            self._run.remove_read_shards()

    def _due(self, complete: int, *, at_once: bool, hurry: bool, quiet: bool) -> bool:
        """Whether enough is new for a reading; readings take half of the time at most."""
        due = max(MESSAGES_MIN, int(self._read_at * GROWTH))
        if self._awaited is not None:
            due = self._unless_awaited
        if at_once:
            due = max(1, self._read_at + self._last_word)
        elif quiet:
            due = max(1, self._read_at + self._read_quiet)
        early = self._clock() < self._not_before_s and complete < 2 * self._read_at
        if hurry:
            due = min(due, self._read_at + 1)
        return complete >= due and (not early or quiet or hurry)

    def _awaited_came(self, extractors: Sequence[Extractor], complete: int) -> bool:
        """Whether so many messages of each awaited flow are there. complete: whole messages
        staged; looks again only once as many more are there as were still to come."""
        if self._awaited is None or complete < self._look_at:
            return False
        whole = _whole(extractors)
        lacking = [max(0, due - whole[flow]) for flow, due in self._awaited.flows]
        if not self._unless_awaited:
            then = complete + MESSAGES_PER_AWAITED * sum(lacking)
            self._unless_awaited = int(min(complete * AWAITED_GROWTH, then * AWAITED_EXCESS)) + 1
        self._look_at = complete + max(1, *lacking)
        return not any(lacking)

    def _quiet(self, extractors: Sequence[Extractor]) -> bool:
        """No message came for a while."""
        staged = completed_messages(extractors)
        if staged != self._grew[0]:
            self._grew = (staged, self._clock())
        return self._clock() - self._grew[1] >= QUIET_S

    def _over(self, extractors: Sequence[Extractor]) -> frozenset[int]:
        """Numbers of mirror points, of several, that bring nothing more."""
        if len(extractors) < 2:
            return frozenset()
        # A live port with no flow until another one had gradients has nothing of the job.
        over = {
            n
            for n, one in enumerate(extractors)
            if one.ring.drained or (n not in self._own_pace and not one.keys())
        }
        return self._points.look(extractors) | over

    def _publish_unread(self, *, unread: bool) -> None:
        """Leaves a file that tells others whether staged messages are still to be read."""
        if unread == self._told:
            return
        self._told = unread
        with suppress(OSError):  # without memory there is nobody to wait either
            if unread:
                self._run.unread.touch(mode=PRIVATE_FILE_MODE)
            else:
                self._run.unread.unlink(missing_ok=True)

    def _begin(
        self,
        extractors: Sequence[Extractor],
        only: Sequence[set[int]] | None,
        before: LearnedJob | None,
        known: KnownJob,
        over: frozenset[int],
        *,
        hasty: bool,
    ) -> None:
        terms = ReadingTerms(
            ended=self._last_word,
            quiet=self._read_quiet,
            over=over,
            own_pace=self._own_pace,
            hasty=hasty,
            release=self._release,
            before=before,
            operator_statement=self._stated,
            known=known,
            blocks=unit_block_bytes_of(self._run),
            sharded=sharded_optimizer_of(self._run),
            stated_start=_stated_start_of(self._run),
            selector=self._wanted,
            weights_at_once=self._weights_at_once,
        )
        staged = tuple(
            staged_snapshot_of(extractor, own)
            for extractor, own in zip(extractors, only or repeat(None), strict=False)
        )
        if self._making is not None and self._making[1].made(0.0) is False:
            self._stop_making()  # the reading that proves the job tries again
        self._reading = ReadingProcess(
            staged,
            terms,
            weights_file=self._run.read_weights,
            made_by_another=NOTHING_TO_MAKE if self._making is None else self._making[0],
            prepare=self._prepare,
        )


def _stated_start_of(run: RunDir) -> StatedStart | None:
    """The weights that the job file's factory and seed make; None: it states none."""
    if not run.stated_start.exists():
        return None
    settings = run.settings()
    seed = settings.sharded.seed if settings.sharded is not None else settings.model.seed
    assert seed is not None, "the file is made by it"
    return StatedStart(run.stated_start, seed)


def _whole(extractors: Sequence[Extractor]) -> Mapping[FlowKey, int]:
    """{flow: whole messages that the mirror point which has most of them has staged}."""
    most: Counter[FlowKey] = Counter()
    for extractor in extractors:
        records, held = extractor.staging.records(), extractor.staging.held()
        whole = held[records["completed"][held] != 0]
        own = np.bincount(records["message"]["flow"][whole])
        most |= Counter(dict(zip(extractor.keys(), map(int, own), strict=False)))
    return most
