"""The same in small: ring, parser, extractor and shard alone, killed by the dozen.

A schedule here takes a tenth of a second. Flows, what each message holds and where that belongs are
made up, the plan is stated, and every life of parser and extractor is a fork that the kernel kills
microseconds after it began.
"""

from __future__ import annotations

import os
import random
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from signal import SIGKILL

import msgspec
import numpy as np
from support.extraction import LL, PMTU_BYTES, RECEIVER, SENDER, SIMPLE, Send, table
from support.faults.drawn import frame_faults
from support.faults.frames import Frame, disturbed
from support.faults.inflicted import signal_after
from support.faults.judge import EXACT, FAILED, NAMED, REFUSED, Verdict
from support.faults.schedule import FrameFault, harmless_frames, remembered, told

from flowcheck._core import ffi, lib
from flowcheck.errors import RingError
from flowcheck.lab.synthetic_traffic.roce_frames import frame, write_packets
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor, place_staged
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState, GradientShard
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.stages.extraction.shard_generations import ShardGenerations
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import FlowPlan

QP, LIMIT_S, LIVES_MAX = 7, 300.0, 4000


class PlaneSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One made-up job, and what is done to its frames and to who reads them."""

    seed: int
    flows: int
    steps: int
    gradient_bytes: int
    unit_bytes: int
    protocols: tuple[int, ...]
    """[flow] of its messages."""
    pieces: int
    """The gradient is cut into, in any order; each is in one message."""
    longest: int
    """Pieces of a message."""
    ordinary: bool
    """Every write has an immediate."""
    together: int
    """Frames of one flow before another one's come."""
    slots: int
    held: int
    staging_bytes: int
    records: int
    spans: tuple[int, int]
    """Most frames of a turn of parser and extractor."""
    planned_at: float
    """Share of the frames that are extracted before the plan is known."""
    kills_us: tuple[int, ...]
    """[life] microseconds from its begin to SIGKILL; lives behind the last are not killed."""
    frames: tuple[FrameFault, ...] = ()

    @property
    def harmless(self) -> bool:
        return (
            harmless_frames(self.frames)
            and self.staging_bytes >= 4 << 20
            and self.held >= 512
            and remembered(self.frames, self.slots, self.flows, self.flows * self.together)
        )


def drawn_plane(seed: int) -> PlaneSchedule:
    """The same for a seed on every machine."""
    dice = random.Random(f"plane {seed}")
    flows = dice.choice((1, 1, 2, 3, 4))
    tight = dice.random() < 0.15
    longest_us = dice.choice((300, 1500, 1500, 6000))
    kills = dice.choice((0, 3, 10, 25, 60))
    return PlaneSchedule(
        seed=seed,
        flows=flows,
        steps=dice.choice((2, 3, 6)),
        gradient_bytes=8 * dice.choice((100, 1000, 4000)),
        unit_bytes=dice.choice((2, 4, 8)),
        protocols=tuple(dice.choice((LL, SIMPLE)) for _ in range(flows)),
        pieces=dice.choice((3, 12, 60)),
        longest=dice.choice((1, 3, 12)),
        ordinary=dice.random() < 0.8,
        together=dice.choice((1, 4, 50)),
        slots=dice.choice((32, 64, 256, 1024)),
        held=dice.choice((2, 8, 32)) if tight else 1024,
        staging_bytes=dice.choice((1 << 14, 1 << 16)) if tight else 8 << 20,
        records=dice.choice((8, 1024)) if tight else 1024,
        spans=(dice.choice((5, 64, 4096)), dice.choice((3, 17, 64, 4096))),
        planned_at=dice.choice((0.0, 0.0, 0.1, 0.5)),
        kills_us=tuple(dice.randint(1, longest_us) for _ in range(kills)),
        frames=frame_faults(dice, files=1) if dice.random() < 0.85 else (),
    )


def plane_table(schedule: PlaneSchedule) -> str:
    """One line for the job, one for each fault."""
    lines = [f"seed {schedule.seed} (plane)", f"  job       {told(schedule, 'seed', 'frames')}"]
    for fault in schedule.frames:
        lines.append(f"  frames    {fault.kind:17} {told(fault, 'kind')}")
    return "\n".join(lines)


@dataclass
class Made:
    """The job: what each flow sends, step by step, and the gradients it makes."""

    first: list[list[Send]]
    """[flow] messages of a step; `data` is the first one's."""
    gradients: list[np.ndarray]
    """[step] uint8 [gradient_bytes]"""
    frames: list[Frame]


def made(schedule: PlaneSchedule) -> Made:
    dice, rng = random.Random(schedule.seed), np.random.default_rng(schedule.seed)
    size, unit = schedule.gradient_bytes, schedule.unit_bytes
    cuts = dice.sample(range(1, size // unit), min(schedule.pieces, size // unit - 1))
    pieces = list(pairwise([0, *sorted(cut * unit for cut in cuts), size]))
    dice.shuffle(pieces)
    messages: list[list[list[tuple[int, int]]]] = [[] for _ in range(schedule.flows)]
    while pieces:
        count = dice.randint(1, schedule.longest)
        messages[dice.randrange(schedule.flows)].append(pieces[:count])
        pieces = pieces[count:]
    for own in messages:  # a flow without a message has no plan
        if not own:
            own.append([])
    steps = [rng.integers(0, 256, size, np.uint8) for _ in range(schedule.steps)]
    first = [
        [_send(schedule, flow, own, steps[0]) for own in messages[flow]]
        for flow in range(schedule.flows)
    ]
    frames = list(_frames(schedule, messages, steps, dice))
    return Made(first, steps, disturbed(frames, schedule.frames))


def _send(
    schedule: PlaneSchedule, flow: int, own: list[tuple[int, int]], values: np.ndarray
) -> Send:
    """The message of one flow that carries these pieces."""
    begins = accumulate((stop - start for start, stop in own), initial=0)
    segments = [(at, stop - start, start) for at, (start, stop) in zip(begins, own, strict=False)]
    data = b"".join(values[start:stop].tobytes() for start, stop in own)
    kind = SendKind.FINAL if own else SendKind.IGNORED
    return Send(data or bytes(8), schedule.protocols[flow], kind, segments)


def _frames(
    schedule: PlaneSchedule,
    messages: list[list[list[tuple[int, int]]]],
    steps: list[np.ndarray],
    dice: random.Random,
) -> Iterator[Frame]:
    """All flows' packets, step by step, flows taking turns."""
    psns, numbers = [0] * schedule.flows, [0] * schedule.flows
    clock_us = 1_700_000_000_000_000
    for values in steps:
        queues = []
        for flow, own in enumerate(messages):
            queue: list[bytes] = []
            for one in own:
                payload = _send(schedule, flow, one, values).payload(numbers[flow])
                parts = write_packets(
                    payload,
                    dest_qp=QP + flow,
                    psn=psns[flow] & 0xFFFFFF,
                    va=0x1000 + 0x10000 * (numbers[flow] % 8),
                    rkey=9 + flow,
                    pmtu_bytes=PMTU_BYTES,
                    immediate=struct.pack("<I", len(payload)) if schedule.ordinary else None,
                )
                psns[flow] += len(parts)
                numbers[flow] += 1
                queue += [frame(SENDER, RECEIVER, 50000 + flow, part) for part in parts]
            queues.append(queue)
        while any(queues):
            queue = dice.choice([one for one in queues if one])
            for data in queue[: schedule.together]:
                clock_us += 1
                yield Frame(clock_us, data)
            del queue[: schedule.together]


@dataclass
class Rig:
    """The files of one schedule, and the two who do not die: capture and the updater."""

    schedule: PlaneSchedule
    job: Made
    folder: Path
    ring: FrameRing = field(init=False)
    shard: GradientShard = field(init=False)
    fed: int = 0
    taken: dict[int, bytes] = field(default_factory=dict)
    """{step: gradient} as the updater read it."""

    def __post_init__(self) -> None:
        own = self.schedule
        self.ring = FrameRing.create(self.folder / "ring", slots=own.slots)
        FlowTable.create(self.folder / "flows", messages=2 * own.slots).close()
        Staging.create(
            self.folder / "staging", messages=2 * own.slots, data_bytes=own.staging_bytes,
            records=own.records, held=own.held,
        ).close()  # fmt: skip
        self.shard = GradientShard.create(
            self.folder / "shard", gradient_bytes=own.gradient_bytes, unit_bytes=own.unit_bytes
        )

    def feed(self) -> int:
        """Capture: as many frames as there is room for."""
        frames, ring = self.job.frames, self.ring
        commit, begin = ring.capture_commit(), self.fed
        while self.fed < len(frames) and ring.head - ring.least_tail < ring.slots:
            data = frames[self.fed].data
            whole = max(len(data), frames[self.fed].wire_bytes)
            stamp = max(1, frames[self.fed].at_us * 1000)
            code = lib.fc_ring_put(
                ring.handle, 0, ffi.from_buffer(data), len(data), whole, stamp, 0
            )
            assert code == 0, code
            lib.fc_ring_publish(ring.handle, 1, commit)
            self.fed += 1
        if self.fed == len(frames) and ring.source_end is None:
            ring.end_source()
        return self.fed - begin

    def take(self) -> int:
        """The updater: whole steps in their order."""
        step = self.shard.applied_iteration + 1
        generation = self.shard.generation_of(step)
        if (
            generation is None
            or self.shard.generation_state(generation) is not GenerationState.COMPLETE
        ):
            return 0
        self.taken[step] = self.shard.gradient(generation).tobytes()
        self.shard.apply(step)
        return 1

    def life(self, after_us: int | None) -> int:
        """Parser and extractor in a process of their own, killed so soon; its wait status."""
        child = os.fork()
        if not child:
            code = 1
            try:
                if after_us is not None:
                    signal_after(SIGKILL, after_us)
                self._work()
                code = 0
            except BaseException:
                (self.folder / "words").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1]

    def _work(self) -> None:
        own, folder = self.schedule, self.folder
        ring = FrameRing.open(folder / "ring")
        flows = FlowTable.open(folder / "flows", writable=True)
        parser = Parser(ring, flows)
        shard = GradientShard.open(folder / "shard")
        extractor = Extractor(ring, flows, Staging.open(folder / "staging"), shard)
        generations = ShardGenerations(self.shard, wanted=lambda: extractor.wanted_iteration)
        behind = int(own.planned_at * len(self.job.frames))
        done = 1
        while done:
            done = parser.parse(own.spans[0])
            generations.open_free()
            planned = ring.tail >= behind and self._plan(extractor)
            done += extractor.extract(own.spans[1])
            if extractor.stalled and not done:
                extractor.unblock()
                done = 1
            if planned:
                done += place_staged([extractor], {})
            generations.newly_complete()
            done += int(generations.open_free())

    def _plan(self, extractor: Extractor) -> bool:
        """States the plan of every flow that was seen; whether there is any."""
        states = extractor.staging.plans()["state"]
        any_of = False
        for flow, sends in enumerate(self.job.first):
            own = FlowKey(source="10.0.0.1", destination="10.0.0.2", dest_qp=QP + flow)
            keys = extractor.keys()
            if own not in keys:
                continue
            any_of = True
            if not states[keys.index(own)]:
                one = table(sends)
                extractor.install_plan(FlowPlan(flow=own, first_number=0, first=one, each=one))
        return any_of

    def close(self) -> None:
        self.ring.close()
        self.shard.close()


def outcome_of(schedule: PlaneSchedule, folder: Path) -> Verdict:
    """Runs and judges it; folder: an empty one in shared memory."""
    began_s, rig, lives = time.monotonic(), Rig(schedule, made(schedule), folder), 0
    try:
        idle = 0
        while idle < 2:
            done = rig.feed()
            after = schedule.kills_us[lives] if lives < len(schedule.kills_us) else None
            before = rig.ring.tail
            status = rig.life(after)
            lives += 1
            done += rig.take() + (rig.ring.tail - before) + int(after is not None)
            idle = 0 if done else idle + 1
            if status not in (0, SIGKILL):
                said = (folder / "words").read_text().splitlines()[-1]
                return _failed(schedule, rig, f"life {lives} ended with {status}: {said}", began_s)
            if time.monotonic() - began_s > LIMIT_S or lives > LIVES_MAX:
                return _failed(schedule, rig, f"no end within {lives} lives", began_s)
        verdict, why = _word(rig)
    except RingError as error:
        verdict, why = REFUSED, str(error)
    finally:
        rig.close()
    return Verdict(
        seed=schedule.seed, verdict=verdict, why=why, taken=len(rig.taken), steps=schedule.steps,
        seconds=round(time.monotonic() - began_s, 2), faults_done=lives,
    )  # fmt: skip


def _failed(schedule: PlaneSchedule, rig: Rig, why: str, began_s: float) -> Verdict:
    return Verdict(
        seed=schedule.seed, verdict=FAILED, why=why, taken=len(rig.taken), steps=schedule.steps,
        seconds=round(time.monotonic() - began_s, 2),
    )  # fmt: skip


def _word(rig: Rig) -> tuple[str, str]:
    """(verdict, why) once nothing more happens."""
    truth = rig.job.gradients
    for step, gradient in rig.taken.items():
        if gradient != truth[step - 1].tobytes():
            wrong = np.flatnonzero(np.frombuffer(gradient, np.uint8) != truth[step - 1])
            return FAILED, f"step {step} is complete with {wrong.size} wrong bytes"
    if rig.ring.tail < len(rig.job.frames):
        return FAILED, f"{rig.ring.tail} of {len(rig.job.frames)} frames extracted"
    if len(rig.taken) == rig.schedule.steps:
        return EXACT, ""
    why, wrong_bytes = _lacking(rig)
    if wrong_bytes:
        return FAILED, f"{why}; {wrong_bytes} bytes of what it covers are wrong"
    if not why:
        return FAILED, f"step {len(rig.taken) + 1} is not complete, and nothing of it lacks"
    if rig.schedule.harmless:
        return FAILED, f"nothing in it may cost a step, and it did: {why}"
    return NAMED, why


def _lacking(rig: Rig) -> tuple[str, int]:
    """(what the next step lacks, bytes it covers that are wrong)."""
    step, shard = len(rig.taken) + 1, rig.shard
    generation = shard.generation_of(step)
    if generation is None:
        return "", 0
    missing, conflicts = shard.missing(generation), shard.conflict_bytes(generation)
    told = []
    if missing:
        told.append(f"{sum(stop - start for start, stop in missing)} bytes")
    if conflicts:
        told.append(f"{conflicts} bytes of two kinds")
    differ = shard.gradient(generation) != rig.job.gradients[step - 1]
    for start, stop in missing:
        differ[start:stop] = False
    doubtful = conflicts or any(fault.kind == "differ" for fault in rig.schedule.frames)
    wrong = 0 if doubtful else int(differ.sum())
    return f"step {step} lacks {' and '.join(told)}" if told else "", wrong
