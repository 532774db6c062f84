"""Stage: stages messages until they prove a job, then places every byte of every step.

Everything it needs after a kill lies in shared memory and in the learned job's files.
"""

from __future__ import annotations

from flowcheck.config import JobConfig
from flowcheck.messages import Drained, JobLearned, Message, Note, ShardReady, StepLost
from flowcheck.plane.extractor import PLAN_ACTIVE, PLAN_SUSPENDED, PLAN_UNKNOWN, Extractor
from flowcheck.plane.flows import FlowTable
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import GENERATIONS, Shard
from flowcheck.plane.staging import Staging
from flowcheck.stages.generations import Generations, Short
from flowcheck.stages.learner import Learner
from flowcheck.stages.links import Links
from flowcheck.stages.recut import Recuts
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Job
from flowcheck.wire.plan import FlowPlan, compile_flow_plans
from flowcheck.wire.seen import FlowKey

SPAN_SLOTS = 4096
"""Slots per ring and turn: a few hundred microseconds."""
LOOK_EVERY = 16
"""Busy turns between two looks at what is staged and at how far the flows are."""
PASSED_STEPS = 2
"""A step is given up when every flow is so many steps beyond it."""
MISSING_RANGES_MAX = 1000
"""Ranges a StepLost names; the shard keeps them all."""


class ExtractService:
    """The only writer of the rings' tails, the staging files and the shard's generations."""

    name = "extract"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._config = run, config
        self._extractors: list[Extractor] = []
        self._learner = Learner(run)
        self._plans: dict[FlowKey, FlowPlan] = {}
        self._generations: Generations | None = None
        self._recuts: Recuts | None = None
        self._broken: tuple[int, str] | None = None
        self._planned: list[int] = []
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
            staging = self._staging(number, flows)
            self._extractors.append(Extractor(ring, flows, staging, shard))
        self._planned = [0] * len(self._extractors)
        job = self._learner.known()
        if job is not None:
            self._adopt(job, shard)

    def _staging(self, number: int, flows: FlowTable) -> Staging:
        """The staging file of one ring; made under another name, so that it appears whole."""
        path = self._run.staging(number)
        if path.exists():
            return Staging.open(path)
        unfinished = path.with_suffix(".tmp")
        unfinished.unlink(missing_ok=True)
        size = self._config.staging.size_bytes
        staging = Staging.create(unfinished, messages=flows.pool_records, data_bytes=size)
        unfinished.replace(path)
        return staging

    def _adopt(self, job: Job, shard: Shard | None) -> None:
        """Obeys a learned job: everything here may have been done before a kill."""
        if shard is None:
            unfinished = self._run.shard.with_suffix(".tmp")
            unfinished.unlink(missing_ok=True)
            unit = min(parameter.element_bytes for parameter in job.parameters)
            shard = Shard.create(unfinished, gradient_bytes=job.state_bytes, unit_bytes=unit)
            unfinished.replace(self._run.shard)
        for extractor in self._extractors:
            extractor.use_shard(shard)
        self._generations = Generations(shard)
        self._generations.open_free()
        self._plans = {plan.flow: plan for plan in compile_flow_plans(job)}
        self._recuts = Recuts(self._run, job, self._plans)
        self._restore()
        self._install()
        self._place()
        self._links.report(JobLearned(path=str(self._run.learned_job)))

    def _restore(self) -> None:
        """Ends what a kill interrupted, and gives plans of a late mirror point what others have."""
        assert self._recuts is not None
        for extractor in self._extractors:
            states = extractor.staging.plans()["state"]
            for index, key in enumerate(extractor.keys()):
                if key in self._plans and states[index] in (PLAN_ACTIVE, PLAN_SUSPENDED):
                    self._recuts.restore(extractor, index, key)

    def work(self) -> int:
        done = sum(extractor.extract(SPAN_SLOTS) for extractor in self._extractors)
        self._turn += 1
        if self._generations is None:
            done += self._learn()
        else:
            done += self._fill(self._generations, idle=not done)
        if not done and not self._over and all(x.ring.drained for x in self._extractors):
            done += self._end()
        return done

    def _learn(self) -> int:
        stalled = [extractor for extractor in self._extractors if extractor.stalled]
        ended = all(extractor.ring.drained for extractor in self._extractors)
        job = self._learner.learn(self._extractors, at_once=bool(stalled) or ended)
        if job is not None:
            self._adopt(job, None)
            return 1
        for extractor in stalled:
            extractor.unblock()
            self._note(f"staging is full and no job is proved: {'; '.join(self._learner.why_not)}")
        return len(stalled)

    def _fill(self, generations: Generations, *, idle: bool) -> int:
        """Homes for what is staged, whole steps to the updater, short ones given up."""
        self._install()
        done = 0
        if generations.open_free() or idle or self._turn % LOOK_EVERY == 0:
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
            return self._lose(short, f"two copies of {short.conflict_bytes} bytes differ")
        if self._broken is not None and short.step >= self._broken[0]:
            return self._lose(short, self._broken[1])
        if any(x.stalled for x in self._extractors) and not generations.waiting:
            return done + self._lose(short, "staging is full and it is not whole")
        if (idle or self._turn % LOOK_EVERY == 0) and self._passed(short.step):
            return done + self._lose(short, "every flow went on without it")
        return done

    def _recut(self, short: Short, *, idle: bool) -> int:
        """Flows that left their plan: what lies between the steps is told and left out."""
        assert self._recuts is not None and self._generations is not None
        if not (idle or self._turn % LOOK_EVERY == 0) or self._broken is not None:
            return 0
        ended = all(x.ring.drained for x in self._extractors)
        full = any(x.stalled for x in self._extractors)
        self._read_out = (ended or full) and not self._generations.waiting
        outcome = self._recuts.look(
            self._extractors,
            self._learner.numbers,
            open_step=short.step + GENERATIONS - 1,
            at_once=self._read_out,
        )
        self._broken = outcome.broken
        for sentence in outcome.notes:
            self._note(sentence)
        return outcome.done and outcome.done + self._place()

    def _install(self) -> None:
        """Plans for flows that appeared; what no plan names is ignored from here on."""
        for number, extractor in enumerate(self._extractors):
            keys = extractor.keys()
            for index in range(self._planned[number], len(keys)):
                if extractor.staging.plans()["state"][index] != PLAN_UNKNOWN:
                    continue
                plan = None if self._lost else self._plans.get(keys[index])
                if plan is None or not extractor.install(plan):
                    extractor.ignore(index)
                elif self._recuts is not None:
                    self._recuts.restore(extractor, index, keys[index])
            self._planned[number] = len(keys)

    def _place(self) -> int:
        return sum(extractor.place_staged(self._learner.numbers) for extractor in self._extractors)

    def _passed(self, step: int) -> bool:
        """Every planned flow is well beyond `step` at every mirror point."""
        last: dict[FlowKey, int] = {}
        for extractor in self._extractors:
            plans = extractor.staging.plans()
            for index, key in enumerate(extractor.keys()):
                plan = plans[index]
                if plan["state"] not in (PLAN_ACTIVE, PLAN_SUSPENDED) or not plan["each_sends"]:
                    continue
                at = int(plan["last_step"])
                last[key] = max(last.get(key, 0), at)
        return bool(last) and all(at >= step + PASSED_STEPS for at in last.values())

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
        for extractor in self._extractors:
            for index in range(len(extractor.keys())):
                extractor.ignore(index)
        self._place()
        return 1

    def _end(self) -> int:
        """The sources ended and every frame is extracted: the last word on every step."""
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
            return self._lose(short, "the capture ended before all of it was seen")
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
            extractor.staging.close()
            extractor.flows.close()
            extractor.ring.close()
        if self._generations is not None:
            self._generations.shard.close()
