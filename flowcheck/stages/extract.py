"""Stage: stages messages until they prove a job, then places every byte of every step.

Everything it needs after a kill lies in shared memory and in the learned job's files.
"""

from __future__ import annotations

from flowcheck.config import JobConfig
from flowcheck.messages import Drained, JobLearned, Message, Note, ShardReady, StepLost
from flowcheck.plane.extractor import Extractor, place_staged
from flowcheck.plane.flows import FlowTable
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import GENERATIONS, Shard
from flowcheck.stages.apart import Apart
from flowcheck.stages.files import create_shard, open_staging
from flowcheck.stages.generations import Generations, Short
from flowcheck.stages.learner import Learner
from flowcheck.stages.links import Links
from flowcheck.stages.planned import Planned
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.succession import Succession, incarnation_of, promote, verdict_of
from flowcheck.wire.job import Job

SPAN_SLOTS = 4096
"""Slots per ring and turn: a few hundred microseconds."""
SPAN_SLOTS_LEAST = 256
"""Where little room is left for packets whose message another ring may know."""
READING_TURN_S = 0.02
"""How long a turn with no slot to extract waits for a reading."""
LOOK_EVERY = 16
"""Busy turns between two looks at what is staged and at how far the flows are."""
MISSING_RANGES_MAX = 1000
"""Ranges a StepLost names; the shard keeps them all."""


class ExtractService:
    """The only writer of the rings' tails, the staging files and the shard's generations."""

    name = "extract"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._config = run, config
        self._extractors: list[Extractor] = []
        self._apart = Apart(run.learned_folder / "numbers")
        self._learner = Learner(run, config.release)
        self._succession = Succession(run, self._learner, self._note)
        self._generations: Generations | None = None
        self._planned: Planned | None = None
        self._broken: tuple[int, str] | None = None
        self._turn = 0
        self._why = ""
        self._over = False
        self._read_out = False

    def start(self, links: Links) -> None:
        self._links = links
        shard = Shard.open(self._run.shard) if self._run.shard.exists() else None
        for number in range(len(self._config.rings)):
            ring = Ring.open(self._run.ring(number))
            flows = FlowTable.open(self._run.flows(number))
            staging = open_staging(self._run, number, flows, self._config.staging.size_bytes)
            self._extractors.append(Extractor(ring, flows, staging, shard))
        verdict = verdict_of(self._run)
        if shard is not None and verdict is not None and verdict.followed:
            promote(self._run, verdict, shard)
        job = self._learner.known()
        if job is not None:
            self._adopt(job, shard)

    def _adopt(self, job: Job, shard: Shard | None, *, fresh: bool = False) -> None:
        """Obeys a learned job: everything here may have been done before a kill.

        fresh: it was learned just now.
        """
        self._apart = Apart(self._run.learned_folder / "numbers")
        self._broken, self._read_out, self._why = None, False, ""
        for extractor, names in zip(self._extractors, self._learner.names(), strict=False):
            extractor.call(names)
        shard = shard or create_shard(self._run, job)
        for extractor in self._extractors:
            extractor.use_shard(shard)
        self._generations = Generations(shard)
        self._generations.open_free()
        base = incarnation_of(self._run).iterations
        self._planned = Planned(self._run, job, self._extractors, base=base, fresh=fresh)
        self._planned.restore()
        self._planned.install(lost=self._lost)
        self._place()
        self._links.report(JobLearned(path=str(self._run.learned_job)))

    def work(self) -> int:
        done = sum(extractor.extract(self._slots(extractor)) for extractor in self._extractors)
        self._turn += 1
        if self._generations is None:
            done += self._learn(wait_s=0.0 if done else READING_TURN_S)
        elif self._succession.proved:
            done += self._wind_up(self._generations)
        elif self._succession.open:
            done += self._hand_over(self._generations.shard)
        else:
            done += self._fill(self._generations, idle=not done)
        if not done and not self._over and all(x.ring.drained for x in self._extractors):
            done += self._end()
        return done

    def _learn(self, *, wait_s: float) -> int:
        stalled = [extractor for extractor in self._extractors if extractor.stalled]
        ended = all(extractor.ring.drained for extractor in self._extractors)
        proof = self._learner.learn(self._extractors, at_once=bool(stalled) or ended, wait_s=wait_s)
        if proof is not None:
            proof.keep(self._run, self._apart)
            self._adopt(proof.job, None, fresh=True)
            return 1
        if self._learner.busy:
            return 0
        for extractor in stalled:
            extractor.unblock()
            self._note(f"staging is full and no job is proved: {'; '.join(self._learner.why_not)}")
        return len(stalled)

    def _fill(self, generations: Generations, *, idle: bool) -> int:
        """Homes for what is staged, whole steps to the updater, short ones given up."""
        assert self._planned is not None
        self._planned.install(lost=self._lost)
        done = 0
        if any(self._planned.late) and (idle or self._turn % LOOK_EVERY == 0):
            done += self._succession.look(self._extractors, self._planned, at_once=False)
            if self._succession.proved:
                return done
        crowded = any(2 * x.staging.held_free < x.staging.held_packets for x in self._extractors)
        if generations.open_free() or idle or crowded or self._turn % LOOK_EVERY == 0:
            done += self._place()
        for step, generation in generations.finished():
            self._links.send("update", ShardReady(step=step, generation=generation))
        short = generations.short()
        if short is None or short.lost or done:
            return done
        done += self._recut(short, idle=idle)
        if done:
            return done
        if short.conflict_bytes:
            return self._lose(short, f"two copies differ within {short.conflict_bytes} bytes of it")
        if self._broken is not None and short.step >= self._broken[0]:
            return self._lose(short, self._broken[1])
        if any(x.stalled for x in self._extractors) and any(self._planned.late):
            self._succession.drop(self._planned)
            return done + self._place()
        if any(x.stalled for x in self._extractors) and not generations.waiting:
            return done + self._give_up(short, "staging is full and it is not whole")
        # A whole step before it frees a generation first: then what waits is read again.
        looks = (idle or self._turn % LOOK_EVERY == 0) and not generations.waiting
        if looks and (why := self._planned.passed(short.step)):
            return done + self._give_up(short, why)
        return done

    def _give_up(self, short: Short, why: str) -> int:
        """Nothing more comes of this step; what waits behind a loss may still complete it."""
        assert self._planned is not None
        passed = self._planned.explain(self._apart.numbers)
        for sentence in passed:
            self._note(sentence)
        return len(passed) + self._place() if passed else self._lose(short, why)

    def _recut(self, short: Short, *, idle: bool) -> int:
        """Flows that left their plan: what lies between the steps is told and left out."""
        assert self._planned is not None and self._generations is not None
        if not (idle or self._turn % LOOK_EVERY == 0):
            return 0
        ended = self._succession.proved or all(x.ring.drained for x in self._extractors)
        full = any(x.stalled for x in self._extractors)
        self._read_out = (ended or full) and not self._generations.waiting
        if self._broken is not None:
            return 0
        outcome = self._planned.recuts.look(
            self._extractors,
            self._apart.numbers,
            open_step=short.step + GENERATIONS - 1,
            at_once=self._read_out,
        )
        self._broken = outcome.broken
        for sentence in outcome.notes:
            self._note(sentence)
        return outcome.done and outcome.done + self._place()

    def _wind_up(self, generations: Generations) -> int:
        """A later incarnation is proved: the last whole steps of the one before it."""
        assert self._planned is not None
        self._planned.install(lost=self._lost)
        done = generations.open_free() + self._place()
        for step, generation in generations.finished():
            self._links.send("update", ShardReady(step=step, generation=generation))
        short = generations.short()
        if short is not None and not short.lost:
            done = done or self._recut(short, idle=True)
            if not done and self._planned.explain(self._apart.numbers):
                done = self._place()
        if done or generations.waiting:
            return done
        if short is not None and short.covered_bytes and not short.lost:
            self._note(f"step {short.step} was in flight when its job ended, and is given up")
        self._planned.ignore_planned()
        generations.shard.clear()
        self._place()
        self._succession.commit()
        self._links.send("update", JobLearned(path=str(self._run.successor)))
        return 1

    def _hand_over(self, shard: Shard) -> int:
        """The updater's word on the later incarnation, once it is there, is obeyed."""
        verdict = verdict_of(self._run)
        if verdict is None:
            return 0
        if not verdict.followed:
            self._why = verdict.why
            assert self._planned is not None
            self._planned.install(lost=True)
            self._succession.drop(self._planned)
            return self._place()
        promote(self._run, verdict, shard)
        job = self._learner.known()
        assert job is not None
        self._adopt(job, shard, fresh=True)
        return 1

    def _place(self) -> int:
        done = self._apart.adopt(self._extractors)
        self._apart.number(self._extractors)
        return done + place_staged(self._extractors, self._apart.numbers)

    def _slots(self, extractor: Extractor) -> int:
        """How much to take at once: what a ring holds for another one must find room."""
        if len(self._extractors) == 1:
            return SPAN_SLOTS
        return min(SPAN_SLOTS, max(SPAN_SLOTS_LEAST, extractor.staging.held_free))

    @property
    def _lost(self) -> bool:
        short = self._generations.short() if self._generations else None
        return short is not None and short.lost

    def _lose(self, short: Short, why: str) -> int:
        """The replica stops before this step; capture and counting go on."""
        assert self._generations is not None
        shard = self._generations.shard
        missing = shard.missing(short.generation)
        if len(missing) > MISSING_RANGES_MAX:
            why += f"; the first {MISSING_RANGES_MAX} of {len(missing)} missing ranges"
            missing = missing[:MISSING_RANGES_MAX]
        shard.lose(short.generation)
        self._why = f"step {short.step} was lost: {why}"
        message = StepLost(step=short.step, missing=missing, why=why)
        self._links.send("update", message)
        self._links.report(message)
        assert self._planned is not None
        self._planned.ignore_planned()
        self._place()
        return 1

    def _end(self) -> int:
        """The sources ended and every frame is extracted: the last word on every step."""
        if self._learner.busy or self._succession.proved:
            return 0
        if self._generations is not None and self._succession.open:
            verdict = verdict_of(self._run)
            known = verdict is not None and not verdict.followed
            return self._say_drained(self._generations.shard.applied_step) if known else 0
        if self._planned is not None and any(self._planned.late):
            looked = self._succession.look(self._extractors, self._planned, at_once=True)
            return looked and looked + self._place()
        if self._generations is None and not self._learner.read_all(self._extractors):
            return 0
        if self._generations is None:
            self._why = "no job was learned: " + "; ".join(self._learner.why_not)
            return self._say_drained(0)
        held = sum(int(x.staging.handle.header.records_held) for x in self._extractors)
        short = self._generations.short()
        if short is None:
            return 0
        if held and not short.lost and (self._generations.waiting or not self._read_out):
            return 0
        if not short.lost and (short.covered_bytes or held):
            return self._give_up(short, "the capture ended before all of it was seen")
        if short.lost and not self._why:
            self._why = f"step {short.step} was lost"  # by this stage, before it was restarted
        return self._say_drained(short.step - 1)

    def _say_drained(self, steps: int) -> int:
        self._over = True
        self._links.report(Drained(stage=self.name, steps=steps, why=self._why))
        return 0

    def _note(self, sentence: str) -> None:
        self._links.report(Note(stage=self.name, sentence=sentence))

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at positions and states itself."""

    def drained(self) -> bool:
        return self._over

    def stop(self) -> None:
        for extractor in self._extractors:
            extractor.close()
            if not self._learner.reading:  # it looks at payloads where they lie
                extractor.staging.close()
            extractor.flows.close()
            extractor.ring.close()
        if self._generations is not None:
            self._generations.shard.close()
