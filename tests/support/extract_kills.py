"""An extractor killed before every one of its stores, in many small scenes.

`python -m support.extract_kills SCENE [SECOND_KILLS]` on a build of support.kill_points: a scene's
frames are parsed first; then extracting, placing, handing steps on and what else the scene does is
done once undisturbed, and once more for every store it makes, killed there and begun anew.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support import kill_points
from support.extraction import PMTU_BYTES, SIMPLE, Packet, Send, packets_of, plan_of
from support.kill_points import reordered

from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.flow_plan_install import PLAN_UNKNOWN
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor, place_staged
from flowcheck.plane.shared_memory.differing_copies import differences
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import (
    GENERATIONS,
    GenerationState,
    GradientShard,
)
from flowcheck.plane.shared_memory.packet_counters import counter_values
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.stages.extraction.shard_generations import ShardGenerations
from flowcheck.stages.staged_messages.across_rings import CrossRingReassembly
from flowcheck.wire.training_job.connection_messages import SendKind

SLOTS = 256
UNIT_BYTES = 4


@dataclass
class Scene:
    """Files of a run, every frame of it parsed; and what of it the updater took."""

    rings: list[FrameRing]
    flows: list[FlowTable]
    stagings: list[Staging]
    shard: GradientShard
    taken: NDArray[np.uint8]
    """[steps, gradient_bytes] as the updater found them complete."""
    counted_again: frozenset[str] = frozenset()
    """Counters that a kill may raise: what spans two rings' files is done again in one of them."""
    files: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(8, np.uint64))
    """Stands for files that a stage writes whole: one word is one of them."""

    def maps(self) -> list[NDArray[np.uint64]]:
        handles = [one.handle for one in self.rings] + [one.handle for one in self.stagings]
        mapped = [kill_points.mapped(one.map) for one in (*handles, self.shard.handle)]
        return [*mapped, self.taken.view(np.uint64).ravel(), self.files]

    def write_file(self, which: int, value: int) -> None:
        """The file is there from now on, or another one."""
        to = ffi.cast("uint8_t *", self.files[which:].ctypes.data)
        lib.fc_copy_stream(to, ffi.from_buffer(value.to_bytes(8, "little")), 8)

    @contextmanager
    def extractors(self, *, block: bool = True) -> Iterator[list[Extractor]]:
        """As a stage opens them."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(Extractor(ring, flows, staging, self.shard, block=block))
                for ring, flows, staging in zip(self.rings, self.flows, self.stagings, strict=True)
            ]

    def take_whole_steps(self, generations: ShardGenerations) -> int:
        """The updater's part: copies whole steps, in order, then says so."""
        count = 0
        generations.newly_complete()
        while True:
            step = self.shard.applied_iteration + 1
            generation = self.shard.generation_of(step)
            if (
                generation is None
                or self.shard.generation_state(generation) != GenerationState.COMPLETE
            ):
                return count
            assert step <= len(self.taken), f"step {step} of {len(self.taken)}"
            to = ffi.cast("uint8_t *", self.taken[step - 1].ctypes.data)
            data = lib.fc_shard_data(self.shard.handle, generation)
            lib.fc_copy_stream(to, data, self.shard.gradient_bytes)
            self.shard.apply(step)
            generations.open_free()
            count += 1

    def outcome(self) -> dict[str, Any]:
        """What a reader finds: bytes only where they are said to be there."""
        found: dict[str, Any] = {"taken": self.taken.tobytes()}
        found["applied"] = self.shard.applied_iteration
        found["files"] = self.files.tobytes()
        for n in range(GENERATIONS):
            g = self.shard.handle.header.generations[n]
            found[f"generation {n}"] = (int(g.state), int(g.step), int(g.covered_units))
            found[f"conflicts {n}"] = (int(g.conflict_bytes), int(g.module_buffer_conflict_bytes))
            differs = differences(self.shard, n)
            found[f"differing {n}"] = differs.ranges, differs.placed
            gradient = self.shard.gradient(n).copy()
            for start, stop in self.shard.missing(n):
                gradient[start:stop] = 0
            found[f"bytes {n}"] = gradient.tobytes(), self.shard.missing(n)
        for n, (ring, staging) in enumerate(zip(self.rings, self.stagings, strict=True)):
            h = staging.handle.header
            commit = ring.extract_commit()
            for name, counters in (("", commit.counters), ("own ", h.counters)):
                said = counter_values(counters)
                found[f"{name}counters {n}"] = {
                    word: said[word] for word in said if word not in self.counted_again
                }
            found[f"room {n}"] = (int(h.records_in_use), int(h.data_in_use), int(h.orphans_used))
            found[f"completions {n}"] = int(h.completions)
            found[f"held {n}"] = sorted(
                (flow, psn, data.tobytes()) for flow, psn, data in staging.orphan_packets()
            )
            found[f"staged {n}"] = sorted(staged(staging))
            found[f"other copies {n}"] = sorted(
                (position, psn, data.tobytes()) for position, psn, data in staging.other_copies()
            )
            plans = staging.plans()[: len(self.flows[n].flows())]
            found[f"plans {n}"] = plans.tobytes()
            found[f"tail {n}"] = ring.tail
        return found


def staged(staging: Staging) -> Iterator[tuple[Any, ...]]:
    """Content of what is staged."""
    records = staging.records()
    for record in map(int, np.flatnonzero(records["state"] == 1)):
        kept = records[record]
        m = kept["message"]
        yield (
            *(int(m[name]) for name in ("position", "flow", "first_psn", "packets", "number")),
            *(int(kept[name]) for name in ("completed", "conflict_from", "conflict_stop")),
            staging.payload(record).tobytes(),
            staging.missing(record),
        )


def check_rooms(staging: Staging) -> None:
    """No two messages share a byte of room, every record is in use or free, once; and what is
    counted is so."""
    h, records = staging.handle.header, staging.records()
    held = records[records["state"] == 1]
    blocks = [(int(r["block_at"]), int(r["block_bytes"])) for r in held]
    assert int(h.records_in_use) == len(held)
    assert int(h.data_in_use) == sum(size for _, size in blocks)
    end = 0
    for at, size in sorted(blocks):
        assert at >= end, f"a block at {at} where one ended at {end}"
        end = at + size
    assert end <= int(h.data_bytes)
    free, next_free = 0, int(h.records_free)
    while next_free:
        free, next_free = free + 1, int(records["next"][next_free - 1])
        assert free <= len(records), "a free list without an end"
    assert free + len(held) == len(records), "a record is lost"
    assert int(h.orphans_used) == len(list(staging.orphan_packets()))
    others = [staging.handle.others[n] for n in range(lib.FC_OTHER_COPIES)]
    positions = [int(one.position) for one in others if one.used]
    assert int(h.others_used) == len(positions)
    assert set(positions) <= set(map(int, held["message"]["position"]))


@contextmanager
def scene(
    folder: Path,
    frames: Sequence[Iterable[bytes]],
    *,
    gradient_bytes: int,
    steps: int = 1,
    live: bool = False,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Scene]:
    """frames: [ring] what comes there; sizes: of the staging files, where they are to be others."""
    room = {"records": 16, "held": 8, "sends": 256, "segments": 1024, "data_bytes": 1 << 15}
    room |= sizes
    with ExitStack() as stack:
        enter = stack.enter_context
        rings, tables, stagings = [], [], []
        for n, of_ring in enumerate(frames):
            ring = enter(FrameRing.create(folder / f"ring{n}", slots=SLOTS, live_source=live))
            table = enter(FlowTable.create(folder / f"flows{n}", messages=2 * SLOTS))
            staging = Staging.create(folder / f"staging{n}", messages=2 * SLOTS, **room)
            stagings.append(enter(staging))
            commit = ring.capture_commit()
            for one in of_ring:
                data = ffi.from_buffer(one)
                assert not lib.fc_ring_put(ring.handle, 0, data, len(one), len(one), 1, 0)
                lib.fc_ring_publish(ring.handle, 1, commit)
            with Parser(ring, table) as parser:
                parser.parse(SLOTS)
            rings.append(ring)
            tables.append(table)
        shard = enter(
            GradientShard.create(
                folder / "shard", gradient_bytes=gradient_bytes, unit_bytes=UNIT_BYTES
            )
        )
        yield Scene(rings, tables, stagings, shard, np.zeros((steps, gradient_bytes), np.uint8))


@dataclass
class Traffic:
    """The sends of a job's steps, and its packets in the order sent."""

    steps: list[list[Send]]
    packets: list[Packet] = field(init=False)
    gradient_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.packets = packets_of([send for step in self.steps for send in step], immediate=False)
        self.gradient_bytes = max(
            dst + size for send in self.steps[0] for _, size, dst in send.segments
        )

    def truth(self) -> NDArray[np.uint8]:
        """[steps, gradient_bytes]"""
        out = np.zeros((len(self.steps), self.gradient_bytes), np.uint8)
        for row, step in zip(out, self.steps, strict=True):
            for send in step:
                data = np.frombuffer(send.data, np.uint8)
                for at, size, dst in send.segments:
                    row[dst : dst + size] = data[at : at + size]
        return out


def traffic(steps: int, sizes: Sequence[int], protocol: int = SIMPLE, seed: int = 1) -> Traffic:
    """Steps of final sends of these data sizes, one behind the other in the gradient."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        sends, at = [], 0
        for size in sizes:
            data = rng.integers(0, 256, size, np.uint8).tobytes()
            sends.append(Send(data, protocol, SendKind.FINAL, ((0, size, at),)))
            at += size
        made.append(sends)
    return Traffic(made)


def follow(own: Scene, job: Traffic, span: int, *, learned: bool = True) -> None:
    """What a stage does from its start to the end of its rings. learned: the plan is installed
    before the first slot is extracted; else once all are."""
    generations = ShardGenerations(own.shard)
    plan = plan_of(job.steps[0], each=job.steps[-1])
    with own.extractors() as extractors:
        generations.open_free()
        if learned:
            install(extractors, plan)
        while sum(x.extract(span) for x in extractors):
            place_staged(extractors, {})
            own.take_whole_steps(generations)
        if not learned:
            install(extractors, plan)
        while place_staged(extractors, {}) + own.take_whole_steps(generations):
            pass


def install(extractors: Sequence[Extractor], plan: Any) -> None:
    """The plan of every ring that lacks it."""
    for x in extractors:
        if x.staging.plans()["state"][0] == PLAN_UNKNOWN:
            x.install_plan(plan)


@dataclass(frozen=True)
class Act:
    """One scene: what is set up, what is done, and what must have come of it undisturbed."""

    made: Callable[[Path], AbstractContextManager[Scene]]
    work: Callable[[Scene], None]
    check: Callable[[Scene], None]
    alike: bool = True
    """A kill changes nothing of what a reader finds; else only that it passes the check."""
    truth: NDArray[np.uint8] | None = None
    """[steps, gradient_bytes] what is there of a step at any instant, if no copies differ."""


SCENES: dict[str, Act] = {}
NIGHTLY: set[str] = set()
"""Those of more stores than a day's suite has time for."""


def explore(act: Act, twice: int, every: int) -> kill_points.Explored:
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-test-", dir="/dev/shm"))
    try:
        with act.made(folder) as own:

            def outcome() -> dict[str, Any]:
                act.check(own)
                for staging in own.stagings:
                    check_rooms(staging)
                return own.outcome() if act.alike else {}

            def instant(_: bool) -> None:
                if act.truth is not None:
                    check_there(own.shard, act.truth)

            return kill_points.explore(
                own.maps(),
                lambda: act.work(own),
                outcome,
                instant=instant,
                twice=twice,
                every=every,
            )
    finally:
        shutil.rmtree(folder)


def check_there(shard: GradientShard, truth: NDArray[np.uint8]) -> None:
    """What a generation says it has is right, whoever reads it while nobody writes."""
    for n in range(GENERATIONS):
        state, step = shard.generation_state(n), shard.iteration(n)
        if state not in (GenerationState.OPEN, GenerationState.COMPLETE):
            continue
        missing = shard.missing(n)
        assert state == GenerationState.OPEN or not missing, f"step {step} is said to be whole"
        found, right = shard.gradient(n).copy(), truth[step - 1] if step <= len(truth) else None
        for start, stop in missing:
            if right is not None:
                found[start:stop] = right[start:stop]
        assert right is None or np.array_equal(found, right), f"wrong bytes in step {step}"


def whole(job: Traffic) -> Callable[[Scene], None]:
    """Every step was taken, and is as it was sent."""
    right = job.truth()

    def check(own: Scene) -> None:
        assert own.shard.applied_iteration == len(right), own.outcome()
        assert np.array_equal(own.taken, right), "a wrong byte in a complete step"

    return check


def add(
    name: str,
    job: Traffic,
    packets: Iterable[Packet],
    work: Callable[[Scene], None],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """A scene of one ring that must end with every step whole."""
    frames = [[packet.frame for packet in packets]]

    def made(folder: Path) -> AbstractContextManager[Scene]:
        room = job.gradient_bytes
        return scene(folder, frames, gradient_bytes=room, steps=len(job.steps), sizes=sizes)

    SCENES[name] = Act(made, work, whole(job), truth=job.truth())


def _reordering() -> None:
    for window, span, seed in ((3, 7, 2), (5, 7, 2), (7, 9, 1), (16, 11, 1)):
        for learned in (True, False):
            job = traffic(2, (2 * PMTU_BYTES, 3 * PMTU_BYTES - 40, 2 * PMTU_BYTES) * 2)
            add(
                f"window-{window}-{'learned' if learned else 'staged'}",
                job,
                reordered(job.packets, window, seed),
                partial(follow, job=job, span=span, learned=learned),
            )


_reordering()


def _strangers_wait() -> list[bytes]:
    """Packets of another queue pair whose messages' starts never come."""
    sends = [Send(bytes([n]) * (3 * PMTU_BYTES), SIMPLE, SendKind.FINAL) for n in range(4)]
    return [p.frame for p in packets_of(sends, qp=9, immediate=False) if p.offset]


def _crowded() -> None:
    """Strangers fill every held place; packets of the followed flow take theirs."""
    job = traffic(1, (3 * PMTU_BYTES, 2 * PMTU_BYTES))
    frames = [*_strangers_wait(), *(p.frame for p in reordered(job.packets, 3, 4))]
    # The start of the flow is known before anybody waits, so that it is followed by then.
    frames.insert(0, frames.pop(frames.index(job.packets[0].frame)))

    def made(folder: Path) -> AbstractContextManager[Scene]:
        return scene(folder, [frames], gradient_bytes=job.gradient_bytes, sizes={"held": 3})

    SCENES["crowded-places"] = Act(made, partial(follow, job=job, span=64), whole(job))


def _copies() -> None:
    job = traffic(1, (3 * PMTU_BYTES, 2 * PMTU_BYTES))
    twice = [p for packet in reordered(job.packets, 3, 1) for p in (packet, packet)]
    add("equal-copies", job, twice, partial(follow, job=job, span=64))
    other = Traffic(
        [
            [Send(bytes(len(s.data)), s.protocol, s.kind, s.segments) for s in step]
            for step in job.steps
        ]
    )
    for learned in (True, False):
        # A packet without its start yet comes twice, with other bytes.
        frames = [job.packets[1].frame, other.packets[1].frame]
        frames += [p.frame for p in job.packets if p is not job.packets[1]]

        def made(folder: Path, frames: list[bytes] = frames) -> AbstractContextManager[Scene]:
            return scene(folder, [frames], gradient_bytes=job.gradient_bytes)

        def check(own: Scene) -> None:
            assert own.shard.applied_iteration == 0
            generation = own.shard.generation_of(1) or 0
            assert own.shard.conflict_bytes(generation) == PMTU_BYTES
            # The second copy of a packet without its message is not kept.
            listed = differences(own.shard, generation)
            assert listed.placed and listed.spans == ((PMTU_BYTES, 2 * PMTU_BYTES),)

        work = partial(follow, job=job, span=64, learned=learned)
        SCENES[f"differing-copies-{'placed' if learned else 'staged'}"] = Act(made, work, check)
    # Of a staged message: both copies are kept.
    again = [job.packets[0], other.packets[1], job.packets[1], other.packets[1]]
    mixed = [*job.packets[:2], *again, *job.packets[2:], other.packets[-1]]

    def found(own: Scene) -> None:
        sent = job.truth()[0]
        generation = own.shard.generation_of(1) or 0
        assert own.shard.conflict_bytes(generation) == 2 * PMTU_BYTES
        ranges = differences(own.shard, generation).ranges
        assert [one.start for one in ranges] == [PMTU_BYTES, job.gradient_bytes - PMTU_BYTES]
        for one in ranges:
            assert one.first == sent[one.start : one.stop].tobytes()
            assert one.later == bytes(PMTU_BYTES)
        assert not list(own.stagings[0].other_copies())

    def kept(folder: Path) -> AbstractContextManager[Scene]:
        frames = [packet.frame for packet in mixed]
        return scene(folder, [frames], gradient_bytes=job.gradient_bytes)

    work = partial(follow, job=job, span=3, learned=False)
    SCENES["differing-copies-kept"] = Act(kept, work, found)


def _over_rings() -> None:
    """Every second packet at each of two mirror ports: what one holds the other knows."""
    job = traffic(1, (3 * PMTU_BYTES, 4 * PMTU_BYTES))
    ways: list[list[bytes]] = [[], []]
    for nth, packet in enumerate(job.packets):
        ways[nth % 2 if packet.offset else 0].append(packet.frame)
    ways[1].insert(0, job.packets[0].frame)

    def made(folder: Path) -> AbstractContextManager[Scene]:
        return scene(folder, ways, gradient_bytes=job.gradient_bytes)

    def work(own: Scene) -> None:
        own.counted_again = frozenset({"placed_packets", "duplicate_bytes"})
        generations = ShardGenerations(own.shard)
        plan = plan_of(job.steps[0], each=job.steps[-1])
        with own.extractors() as extractors:
            generations.open_free()
            install(extractors, plan)
            while sum(x.extract(64) for x in extractors):
                pass
            with tempfile.TemporaryDirectory() as folder:
                CrossRingReassembly(Path(folder) / "numbers").deliver_orphans(extractors)
            place_staged(extractors, {})
            own.take_whole_steps(generations)

    SCENES["over-rings"] = Act(made, work, whole(job))


_crowded()
_copies()
_over_rings()
NIGHTLY.update(f"window-{window}-staged" for window in (3, 7, 16))
NIGHTLY.add("window-3-learned")  # window-5-learned with fewer packets out of order


def main() -> None:
    name, twice, every = sys.argv[1], *map(int, (sys.argv[2:] + ["0", "1"][len(sys.argv) - 2 :]))
    print(explore(SCENES[name], twice, every))


if __name__ == "__main__":
    main()
