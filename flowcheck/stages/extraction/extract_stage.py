"""Stage: keeps messages until they prove a job, then places every byte of every step.

All that it needs after a kill lies in shared memory and in the learned job's files. What it does is
one of the states in job_state/lifecycle_state_machines.py, which `work` looks up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from flowcheck.atomic_write import atomic_path
from flowcheck.config import JobConfig
from flowcheck.findings.catalog.job_selection_reasons import (
    BEGINS_UNSEEN,
    FLOWS_OF_NO_JOB,
    FURTHER_JOBS,
    JOINED,
    NO_JOB_LEARNED,
    STAGING_FULL,
    STAGING_FULL_BEFORE_TURN,
    STAGING_TOO_SMALL,
)
from flowcheck.findings.finding import Finding
from flowcheck.messages import Drained, JobLearned, Message, Note
from flowcheck.plane.extraction.payload_extractor import Extractor, place_staged
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.private_files import PRIVATE_FILE_MODE
from flowcheck.stages.extraction.active_job import ActiveJob
from flowcheck.stages.extraction.differing_weights import tell_differing_weights
from flowcheck.stages.extraction.flows_elsewhere import FlowsElsewhere
from flowcheck.stages.extraction.job_restart import (
    JobRestart,
    promote_successor,
    remove_stale_offers,
)
from flowcheck.stages.extraction.shard_creation import open_or_create_shard, prepare_shard
from flowcheck.stages.job_learning import late_join
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_learning.job_selection import FlowClaims, JobSelector, job_selector_of
from flowcheck.stages.job_learning.learning_status import LearningStatus, reasons_with_traffic
from flowcheck.stages.job_learning.remembered_job import may_join_midstream, store_learned_job
from flowcheck.stages.job_learning.stream_reading import NO_KNOWN_JOB
from flowcheck.stages.job_state.lifecycle_state_machines import ExtractState
from flowcheck.stages.job_state.lifecycle_writers import ExtractLifecycle
from flowcheck.stages.job_state.model_layout import names_fit, optimizer_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.staged_messages.across_rings import CrossRingReassembly
from flowcheck.stages.staged_messages.staging_space import (
    rings_drained,
    slots_to_take,
    stalled_extractors,
)
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob


def open_staging(run: RunDir, number: int, flows: FlowTable, size_bytes: int) -> Staging:
    """The staging file of one ring; creates it where it does not exist."""
    path = run.staging(number)
    if path.exists():
        return Staging.open(path)
    with atomic_path(path, durable=False) as place:
        return Staging.create(place, messages=flows.pool_records, data_bytes=size_bytes)


READING_TURN_S = 0.02
"""Seconds that a turn with no slot to extract waits for a reading. A choice equal to an idle
stage's wait (service_loop.py, IDLE_MAX_MS): a turn that waited 100 ms filled the ring."""
LOOK_EVERY = 16
"""Busy turns between two looks at what is staged and at how far the flows are. A choice: fewer cost
time in Python, more give up lost steps later."""


class ExtractService:
    """The only writer of the rings' tails, the staging files and the shard's generations."""

    name = "extract"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._config = run, config
        self._extractors: list[Extractor] = []
        self._learner = JobLearner(
            run,
            config.release,
            stated=config.stated,
            prepare=partial(prepare_shard, run),
            own_pace=[n for n, (of, _) in enumerate(config.rings) if not config.source[of].live],
        )
        self._claims = FlowClaims(run, config)
        self._wanted = job_selector_of(config, run.reader)
        self._elsewhere = FlowsElsewhere(config)
        self._unlearned = LearningStatus(run, self._note)
        self._followed: ActiveJob | None = None
        self._turn = 0
        self._known = NO_KNOWN_JOB
        """Of a job that may be joined midstream."""

    def start(self, links: StageSockets) -> None:
        self._links = links
        awaits_base = self._config.replica.awaits_base
        self._lifecycle = ExtractLifecycle(self._run, self._note, awaits_base=awaits_base)
        self._succession = JobRestart(self._lifecycle, self._learner, self._note, self._wants)
        shard = GradientShard.open(self._run.shard) if self._run.shard.exists() else None
        for number in range(len(self._config.rings)):
            ring = FrameRing.open(self._run.ring(number), reader=self._run.reader)
            flows = FlowTable.open(self._run.flows(number))
            staging = open_staging(self._run, number, flows, self._config.staging.size_bytes)
            staging.map_pages()
            self._extractors.append(Extractor(ring, flows, staging, shard, number=number))
        if self._lifecycle.state is ExtractState.HANDING_OVER and shard is not None:
            self._obey_verdict(shard)
        remove_stale_offers(self._lifecycle)
        self._run.remove_read_weights()
        self._run.remove_read_shards()
        job = self._learner.known()
        if job is not None:
            self._adopt(job, shard)
        elif may_join_midstream(self._config):
            self._known = late_join.remembered_job_of(self._run)

    def _adopt(self, job: LearnedJob, shard: GradientShard | None, *, fresh: bool = False) -> None:
        """Starts to follow a learned job. fresh: it was learned just now."""
        if self._lifecycle.state is ExtractState.STAGING:
            self._lifecycle.enter(ExtractState.FOLLOWING)
        for extractor, names in zip(self._extractors, self._learner.names(), strict=False):
            extractor.set_flow_names(names)
        shard, job = open_or_create_shard(self._run, job, shard)
        for extractor in self._extractors:
            extractor.use_shard(shard)
        optimizer = optimizer_of(job, self._config)
        joins = may_join_midstream(self._config) and job.kind is FollowedData.GRADIENTS
        self._followed = ActiveJob(
            self._run,
            job,
            self._extractors,
            shard,
            self._links,
            each=optimizer.synced_backwards,
            taints=optimizer.per_element,
            fresh=fresh,
            joins=joins,
            bridges=joins and not self._config.together,
            several=self._config.several,
            names=self._names(job),
        )
        store_learned_job(self._config, job)
        self._links.report(JobLearned(path=str(self._run.learned_job)))

    def _names(self, job: LearnedJob) -> Sequence[str] | None:
        """Of its parameters; None: they are not known."""
        return self._config.model.names if names_fit(job, self._config) else None

    def work(self) -> int:
        rings = len(self._extractors)
        done = sum(
            extractor.extract(slots_to_take(extractor, rings)) for extractor in self._extractors
        )
        self._turn += 1
        if self._elsewhere.leave_out(self._extractors) and self._followed is None:
            done += place_staged(self._extractors, {})
        done += self._turn_of(self._lifecycle.state, idle=not done)
        if not done and self._lifecycle.state is not ExtractState.ENDED:
            done += self._end() if rings_drained(self._extractors) else 0
        return done

    def _turn_of(self, state: ExtractState, *, idle: bool) -> int:
        """Does the work of a state, after what arrived was extracted. idle: nothing arrived."""
        followed = self._followed
        if followed is None:
            ended = state is ExtractState.ENDED
            return 0 if ended else self._learn(wait_s=READING_TURN_S if idle else 0.0)
        if state is ExtractState.CLOSING:
            return followed.finish_before_restart(self._succession)
        if state is ExtractState.HANDING_OVER:
            return self._hand_over(followed)
        if self._turned_down:
            return self._leave_out_successor(followed)
        looks = idle or self._turn % LOOK_EVERY == 0
        return followed.fill(self._succession, idle=idle, looks=looks)

    @property
    def _turned_down(self) -> bool:
        """Whether the updater's last verdict was not to follow the incarnation that was offered."""
        offered = self._lifecycle.part.offered
        return offered is not None and self._lifecycle.state is not ExtractState.HANDING_OVER

    def _learn(self, *, wait_s: float) -> int:
        if not self._claims.is_own_turn(self._extractors):
            return self._wait_for_turn()
        waiting = stalled_extractors(self._extractors)
        ended = rings_drained(self._extractors)
        crowded = bool(self._known) and late_join.staging_nearly_full(self._extractors)
        proof = self._learner.learn(
            self._extractors,
            at_once=bool(waiting) or ended,
            hurry=crowded,
            only=self._elsewhere.left(self._extractors),
            known=self._known,
            wait_s=wait_s,
            wanted=self._wants(),
        )
        if proof is not None:
            if proof.job.awaits_base:
                self._lifecycle.await_base()
                self._note(JOINED() if proof.job.midstream else BEGINS_UNSEEN())
            if proof.other_jobs and not self._config.several:
                self._note(FURTHER_JOBS(further=proof.other_jobs, jobs=proof.other_jobs + 1))
            if self._config.several:
                self._claims.claim_flows(self._extractors, proof.names, proof.flows)
            # Before the job is on file: a stage that is killed reads it again.
            differing = tell_differing_weights(
                self._run, proof.job, proof.weights_differing, self._names(proof.job)
            )
            if differing is not None:
                self._links.report(differing)
            proof.write_as_followed_job(
                self._run, CrossRingReassembly(self._run.learned_folder / "numbers")
            )
            self._adopt(proof.job, None, fresh=True)
            self._unlearned.job_learned()
            return 1
        if left := self._learner.take_ignored_flow_count():
            self._note(FLOWS_OF_NO_JOB(left))
            return 1 + place_staged(self._extractors, {})
        if self._learner.busy:
            return 0
        why_not = self._why_not()
        if crowded and self._learner.joining:
            # A job that is known is joined wherever a whole iteration of it is seen.
            self._unlearned.report((*why_not, STAGING_TOO_SMALL()))
            self._learner.forget()
            return late_join.release_staged(self._extractors)
        for extractor in waiting:
            extractor.unblock()
            self._unlearned.store(why_not)
            self._note(STAGING_FULL(why_not))
        if not ended and any(extractor.ring.tail for extractor in self._extractors):
            self._unlearned.report(why_not)
        return len(waiting)

    def _wants(self) -> JobSelector | None:
        """Which of several jobs to learn; once one is followed here, a later incarnation of it."""
        if self._wanted is None or not self._config.several:
            return self._wanted
        back = self._run if self._followed is not None else None
        return replace(
            self._wanted, back=back, earlier_jobs=self._claims.other_jobs(self._extractors)
        )

    def _wait_for_turn(self) -> int:
        """Does the work of a turn in which extractors of other jobs have still to claim their
        flows. Returns how much was done."""
        if self._known and late_join.full_without_start(self._extractors):
            return late_join.release_staged(
                self._extractors
            )  # a job that is known is joined anywhere
        waiting = stalled_extractors(self._extractors)
        if not waiting or not self._claims.others_gave_up():
            return 0
        for extractor in waiting:
            extractor.unblock()
        self._note(STAGING_FULL_BEFORE_TURN())
        return len(waiting)

    def _why_not(self) -> tuple[Finding, ...]:
        """Why no job is learned, with what the ports carry instead."""
        return self._elsewhere.why_nothing() or reasons_with_traffic(
            self._learner.why_not, self._extractors, first=not self._run.reader
        )

    def _hand_over(self, followed: ActiveJob) -> int:
        """Obeys the updater's verdict on the later incarnation, once it is there."""
        shard = followed.generations.shard
        if not self._obey_verdict(shard):
            return self._leave_out_successor(followed) if self._turned_down else 0
        job = self._learner.known()
        assert job is not None
        self._adopt(job, shard, fresh=True)
        return 1

    def _obey_verdict(self, shard: GradientShard) -> bool:
        """Whether the incarnation that is offered is followed from now on."""
        verdict = self._lifecycle.verdict()
        if verdict is None:
            return False
        if verdict.followed:
            promote_successor(self._lifecycle, verdict, shard)
        else:
            self._lifecycle.enter(ExtractState.TURNED_DOWN)
        return verdict.followed

    def _leave_out_successor(self, followed: ActiveJob) -> int:
        """Drops the later incarnation; no message is placed in the shard any more. Returns how many
        messages moved."""
        verdict = self._lifecycle.verdict()
        assert verdict is not None
        followed.why = verdict.why
        followed.planned.install(lost=True)
        self._succession.drop_later_flows(followed.planned)
        return followed.assign_staged()

    def _end(self) -> int:
        """Settles every step: the sources ended and every frame is extracted."""
        if self._learner.busy or self._lifecycle.state is ExtractState.CLOSING:
            return 0
        followed = self._followed
        if followed is None and not self._claims.is_own_turn(self._extractors):
            return 0
        if followed is None:
            if self._learner.read_all(self._extractors):
                self._run.no_job_found.touch(mode=PRIVATE_FILE_MODE)
                self._say_drained(0, NO_JOB_LEARNED(self._why_not()))
            return 0
        if self._lifecycle.state is ExtractState.HANDING_OVER:
            return 0
        if self._turned_down:
            self._say_drained(followed.generations.shard.applied_iteration, followed.why)
            return 0
        if any(followed.planned.late_flows) and not followed.awaits_updater:
            looked = self._succession.check_new_flows(
                self._extractors, followed.planned, at_once=True
            )
            return looked and looked + followed.assign_staged()
        done, steps = followed.end()
        if steps is not None:
            self._say_drained(steps, followed.why)
        return done

    def _say_drained(self, steps: int, why: Finding | None) -> None:
        self._lifecycle.enter(ExtractState.ENDED)
        self._links.report(Drained(stage=self.name, steps=steps, why=why))

    def _note(self, found: Finding) -> None:
        self._links.report(Note(stage=self.name, finding=found))

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at positions and states itself."""

    def drained(self) -> bool:
        return self._lifecycle.state is ExtractState.ENDED

    def stop(self) -> None:
        self._learner.close()
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.generations.report_late_conflicts(last=True)
        for extractor in self._extractors:
            extractor.close()
            extractor.staging.close()
            extractor.flows.close()
            extractor.ring.close()
        if followed is not None:
            followed.generations.shard.close()
