"""An extractor killed before every one of its stores, in what a job's life brings: as
extract_kills, with plans that are left, lost steps, full staging, queue pairs that share a
connection or change hands, and a job that another one follows.

`python -m support.follow_kills SCENE [SECOND_KILLS [EVERY]]` on a build of support.kill_points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from support.extract_kills import Act, Scene, Traffic, explore, scene, traffic, whole
from support.extraction import (
    FLOW,
    LL,
    PMTU_BYTES,
    QP,
    SIMPLE,
    Packet,
    Send,
    packets_of,
    table,
)
from support.kill_points import reordered

from flowcheck._core import lib
from flowcheck.plane.extraction.flow_plan_install import PLAN_SUSPENDED, PLAN_UNKNOWN
from flowcheck.plane.extraction.payload_extractor import Extractor, place_staged
from flowcheck.plane.shared_memory.differing_copies import differences
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState
from flowcheck.stages.extraction.shard_generations import ShardGenerations
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import FlowPlan

SCENES: dict[str, Act] = {}
LARGE = {
    "psn-wrap-4",
    "key-reuse-staged",
    "two-queue-pairs",
    "by-turns-learned",
    "by-turns-over-rings-learned",
    "by-turns-staged",
    "by-turns-over-rings-staged",
    "replanned-in-turn",
    "replanned-reordered",
    "full-records-waits",
    "full-data-waits",
    "full-data-dropped",
    "full-data-live",
    "full-let-go",
    "far-behind",
    "handed-over",
    "ll-staged",
    "behind-partial-simple",
    "behind-partial-ll",
}
"""Of more stores than a day's suite has time for."""
NO_SIZES: Mapping[str, int] = MappingProxyType({})


def add(
    name: str,
    rings: Sequence[Sequence[Packet]],
    job: Traffic,
    work: Callable[[Scene], None],
    check: Callable[[Scene], None] | None = None,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    live: bool = False,
    alike: bool = True,
) -> None:
    """A scene of these packets by ring; check: every step whole, if nothing else is given; alike:
    as in Act."""
    frames = [[packet.frame for packet in packets] for packets in rings]

    def made(folder: Path) -> AbstractContextManager[Scene]:
        return scene(
            folder,
            frames,
            gradient_bytes=job.gradient_bytes,
            steps=len(job.steps),
            sizes=sizes,
            live=live,
        )

    SCENES[name] = Act(made, work, check or whole(job), alike, job.truth() if not check else None)


def plan(
    first: Sequence[Send],
    each: Sequence[Send] = (),
    *,
    qp: int = QP,
    incarnation: int = 0,
    first_psn: int | None = None,
    stride: int = 1,
    phase: int = 0,
) -> FlowPlan:
    key = FlowKey(
        source=FLOW.source, destination=FLOW.destination, dest_qp=qp, incarnation=incarnation
    )
    return FlowPlan(
        flow=key,
        first_number=0,
        first=table(first),
        each=table(each),
        first_psn=first_psn,
        stride=stride,
        phase=phase,
    )


def install(x: Extractor, one: FlowPlan, *, frontier: bool = False, first_step: int = 1) -> None:
    """If the ring has the flow, and not the plan."""
    keys = x.keys()
    if one.flow in keys and x.staging.plans()["state"][keys.index(one.flow)] == PLAN_UNKNOWN:
        x.install_plan(one, first_step=first_step, **({"frontier": 0} if frontier else {}))


def settle(own: Scene, xs: Sequence[Extractor], generations: ShardGenerations) -> None:
    """Homes for what is staged and whole steps to the updater, until nothing moves."""
    while place_staged(xs, {}) + own.take_whole_steps(generations):
        pass


def live(
    own: Scene,
    plans: Sequence[FlowPlan],
    span: int,
    *,
    after: int = 0,
    frontier: bool = False,
    then: Callable[[Extractor], int] = lambda x: 0,
) -> None:
    """What a stage does from its start to the end of its rings. after: slots of each ring that are
    extracted before plans are known; then: what is done to each ring in every turn, and how much
    that was. A turn ends with slots, so that a killed one is made up for before the next."""
    generations = ShardGenerations(own.shard)
    with own.extractors() as xs:
        generations.open_free()
        done = 1
        while done:
            for x in xs:
                if x.ring.tail >= min(after, x.ring.head):
                    for one in plans:
                        install(x, one, frontier=frontier)
            done = sum(map(then, xs))
            settle(own, xs, generations)
            done += sum(x.extract(span) for x in xs)
            done += sum(map(then, xs))


def _sizes(job: Traffic, share: int, of: int) -> Traffic:
    """The part of a job that one of several flows carries: every `of`-th message."""
    return Traffic([step[share::of] for step in job.steps])


MESSAGES = (2 * PMTU_BYTES, 3 * PMTU_BYTES - 40, 40, 2 * PMTU_BYTES)


def _numbered_in_a_run() -> None:
    """Seen from its middle on, over the end of all PSNs: numbers count from its first message."""
    job, start = traffic(2, MESSAGES), 2**24 - 6
    sends = [send for step in job.steps for send in step]
    packets = packets_of(sends, immediate=False, psn=start)
    one = plan(job.steps[0], job.steps[1], first_psn=2**32 + start)
    for window, after in ((1, 5), (4, 9)):
        mixed = [packets[0], *reordered(packets[1:], window, 3)]
        add(f"psn-wrap-{window}", [mixed], job, partial(live, plans=[one], span=5, after=after))


def _owners() -> None:
    """The queue pair's next owner sends the rest of the gradient, in messages of one packet: any
    longer one has packets without an address where the last owner had such, which contend."""
    job = traffic(1, [*MESSAGES[:3], *(min(size, 200) for size in MESSAGES[:3])])
    halves = job.steps[0][:3], job.steps[0][3:]
    packets = packets_of(halves[0], immediate=False, rkey=9)
    packets += packets_of(halves[1], immediate=False, rkey=77)
    plans = [plan(half, incarnation=n) for n, half in enumerate(halves)]
    for after in (0, len(packets)):
        name = f"key-reuse-{'staged' if after else 'learned'}"
        add(name, [packets], job, partial(live, plans=plans, span=4, after=after))


def _queue_pairs() -> None:
    """Two of one pair of hosts: each with a plan of its own, or messages by turns."""
    job = traffic(2, MESSAGES)
    every = [send for step in job.steps for send in step]
    own = [packets_of(every[n::2], qp=QP + n, immediate=False, port=50000 + n) for n in range(2)]
    mixed = reordered([p for pair in zip(*own, strict=False) for p in pair], 5, 2)
    mixed += [p for packets in own for p in packets[min(map(len, own)) :]]
    parts = [_sizes(job, n, 2).steps for n in range(2)]
    alone = [plan(part[0], part[1], qp=QP + n) for n, part in enumerate(parts)]
    shared = [plan(*job.steps, qp=QP + n, stride=2, phase=n) for n in range(2)]
    work = partial(live, plans=alone, span=6, after=7)
    add("two-queue-pairs", [mixed], job, work)
    for after in (0, 99):
        name = "staged" if after else "learned"
        work = partial(live, plans=shared, span=6, after=after, frontier=True)
        add(f"by-turns-{name}", [mixed], job, work)
        rings = [reordered(packets, 3, n) for n, packets in enumerate(own)]
        rings = [[o[0], *(p for p in r if p is not o[0])] for o, r in zip(own, rings, strict=True)]
        add(f"by-turns-over-rings-{name}", rings, job, work)


def _replanned() -> None:
    """Messages of no plan between the steps: the flow is suspended there, and cut."""
    job = traffic(3, MESSAGES[:2])
    extra = [Send(bytes([n]) * (PMTU_BYTES + 8 * n), SIMPLE, SendKind.FINAL) for n in range(1, 4)]
    a, b, c = job.steps
    packets = packets_of([*a, extra[0], *b, *extra[1:], *c], immediate=False)
    cuts = [(2, 3, 1), (5, 7, 3)]

    def cut(x: Extractor) -> int:
        """Until the plan holds: what is staged may deviate again."""
        held = x.staging.plans()[0]
        done = 0
        while held["state"] == PLAN_SUSPENDED:
            x.skip_messages(0, cuts[int(held["skips_used"])])
            done += 1 + x.assign_staged()
        return done

    one = plan(a, b)
    for window, frontier in ((1, True), (4, False)):
        mixed = [packets[0], *reordered(packets[1:], window, 2)]
        work = partial(live, plans=[one], span=4, frontier=frontier, then=cut)
        add(f"replanned-{'in-turn' if frontier else 'reordered'}", [mixed], job, work)


def _full() -> None:
    """There is no room to stage all that comes before the job is known."""
    job = traffic(3, MESSAGES)
    right = job.truth()

    def _lacks(own: Scene) -> None:
        applied = own.shard.applied_iteration
        assert applied < len(right)
        assert np.array_equal(own.taken[:applied], right[:applied])

    packets = reordered(packets_of([s for step in job.steps for s in step], immediate=False), 3, 5)
    one = plan(*job.steps[:2])
    for name, sizes in (("records", {"records": 3}), ("data", {"data_bytes": 4096})):

        def known_once_full(x: Extractor) -> int:
            if not x.stalled:
                return 0
            install(x, one)
            return x.assign_staged()

        work = partial(live, plans=[], span=64, then=known_once_full)
        add(f"full-{name}-waits", [packets], job, work, sizes=sizes)

        def dropped(own: Scene) -> None:
            live(own, [], 64, then=unblocked)
            live(own, [one], 64)

        add(f"full-{name}-dropped", [packets], job, dropped, _lacks, sizes=sizes)
        late = partial(live, plans=[one], span=64, after=99)
        add(f"full-{name}-live", [packets], job, late, _lacks, sizes=sizes, live=True)

    work = partial(live, plans=[], span=64, then=let_go)
    # A kill amid giving up decides what is given up.
    add("full-let-go", [packets], job, work, _lacks, sizes={"records": 3}, alike=False)


def unblocked(x: Extractor) -> int:
    """How many stalled."""
    stalled = x.stalled
    if stalled:
        x.unblock()
    return int(stalled)


def let_go(x: Extractor) -> int:
    """As stages.learning.joining does of a ring that is full."""
    done = 0
    for index, record in enumerate(x.staging.records()):
        if x.stalled and record["state"]:
            lib.fc_staged_release(x.handle, index)
            done += 1
    return done


def _lost() -> None:
    """The second step lacks a packet: it is given up, and the flow is staged again; or ignored."""
    job = traffic(4, MESSAGES[:2])
    packets = packets_of([s for step in job.steps for s in step], immediate=False)
    each = len(packets) // 4
    kept = [p for n, p in enumerate(packets) if n != each + 1]
    one, until = plan(job.steps[0], job.steps[1]), 3 * each - 1

    def check(own: Scene) -> None:
        assert own.shard.applied_iteration == 1
        assert own.shard.generation_state(own.shard.generation_of(2) or 0) == GenerationState.LOST

    def work(own: Scene, *, again: bool) -> None:
        generations = ShardGenerations(own.shard)
        with own.extractors() as [x]:
            generations.open_free()
            short = generations.incomplete_iteration()
            lost = short is not None and short.lost
            if not lost:
                install(x, one)
            settle(own, [x], generations)
            while x.ring.tail < until:
                x.extract(min(7, until - x.ring.tail))
                settle(own, [x], generations)
            if not lost:
                short = generations.incomplete_iteration()
                assert short is not None and short.iteration == 2
                own.shard.mark_lost(short.generation)
            if again:
                x.forget_plans()
            else:
                x.ignore(0)
                x.ignore_late_payload()
            place_staged([x], {})
            while x.extract(7):
                place_staged([x], {})

    for again in (True, False):
        name = f"lost-and-{'joined-again' if again else 'ignored'}"
        add(name, [reordered(kept, 3, 1)], job, partial(work, again=again), check)


def _handed_over() -> None:
    """The job's next life has another queue pair; what it sent was staged meanwhile."""
    job = traffic(4, MESSAGES[:2])
    lives = job.steps[:2], job.steps[2:]
    own = [
        packets_of([s for step in life for s in step], qp=QP + n, immediate=False)
        for n, life in enumerate(lives)
    ]
    at = len(own[0]) - 2
    mixed = reordered([*own[0][:at], *own[1][:4], *own[0][at:], *own[1][4:]], 3, 1)
    mixed = [own[0][0], own[1][0], *(p for p in mixed if p not in (own[0][0], own[1][0]))]
    plans = [plan(*life, qp=QP + n) for n, life in enumerate(lives)]

    def work(scene: Scene) -> None:
        """files[0]: 1 once the old life is over; 2 and the steps before the new one."""
        generations = ShardGenerations(scene.shard)
        with scene.extractors() as [x]:
            if not scene.files[0]:
                generations.open_free()
                install(x, plans[0], frontier=True)
                settle(scene, [x], generations)
                while x.extract(7):
                    settle(scene, [x], generations)
                x.ignore(0)
                x.ignore_late_payload()
                scene.shard.clear()
                place_staged([x], {})
                scene.write_file(0, 1)
            if scene.files[0] == 1:
                scene.shard.clear()
                scene.write_file(0, 2 + scene.shard.applied_iteration)
            generations.open_free()
            install(x, plans[1], frontier=True, first_step=int(scene.files[0]) - 1)
            settle(scene, [x], generations)

    add("handed-over", [mixed], job, work)


def _others() -> None:
    """Lines of LL; packets that wait in vain, far behind; a copy that differs and comes late."""
    job = traffic(2, (400, 120, 264), LL)
    packets = packets_of([s for step in job.steps for s in step], immediate=False)
    for after in (0, 99):
        mixed = [packets[0], *reordered(packets[1:], 4, 1)]
        name = f"ll-{'staged' if after else 'learned'}"
        add(name, [mixed], job, partial(live, plans=[plan(*job.steps)], span=5, after=after))
    short = traffic(1, (2 * PMTU_BYTES,))
    known = packets_of(short.steps[0], immediate=False)
    gone = packets_of([Send(bytes(5 * PMTU_BYTES))], psn=9, immediate=False)[1:4]
    far = packets_of([Send(bytes([n]) * 700) for n in range(3)], psn=70000, immediate=False)
    mixed = [*known, *gone, *(p for n in range(0, 9, 3) for p in (far[n + 1], far[n + 2], far[n]))]
    work = partial(live, plans=[plan(short.steps[0])], span=4)
    add("far-behind", [mixed], short, work, sizes={"held": 3})
    job = traffic(1, MESSAGES[:2])
    packets = packets_of(job.steps[0], immediate=False)
    other = packets_of([Send(bytes(len(s.data))) for s in job.steps[0]], immediate=False)
    work = partial(live, plans=[plan(job.steps[0])], span=3)
    add("differs-once-whole", [[*packets, other[1]]], job, work, _differs)


def _differs(own: Scene) -> None:
    generation = own.shard.generation_of(1) or 0
    assert own.shard.conflict_bytes(generation) == PMTU_BYTES
    [one] = differences(own.shard, generation).ranges
    kept = own.shard.gradient(generation)[one.start : one.stop]
    assert one.first == kept.tobytes() and one.later == bytes(PMTU_BYTES)


def _behind_partial() -> None:
    """The first step lacks a packet and goes on without it. Then all of its packets come again, and
    one with other bytes."""
    for name, protocol, units in (("simple", SIMPLE, PMTU_BYTES), ("ll", LL, PMTU_BYTES // 2)):
        job = traffic(2, MESSAGES[:2], protocol)
        packets = packets_of([s for step in job.steps for s in step], immediate=False)
        others = [Send(bytes(len(s.data)), s.protocol) for s in job.steps[0]]
        other = packets_of(others, immediate=False)
        kept = reordered([p for n, p in enumerate(packets) if n != 1], 3, 1)
        again = [*packets[: len(packets) // 2], other[len(other) - 2]]

        def check(own: Scene, job: Traffic = job, units: int = units) -> None:
            generation = own.shard.generation_of(1) or 0
            assert own.shard.generation_state(generation) == GenerationState.PARTIAL
            assert own.shard.missing(generation) == ((units, 2 * units),)
            right = job.truth()[0]
            right[units : 2 * units] = 0
            assert np.array_equal(own.shard.gradient(generation), right)
            assert own.shard.conflict_bytes(generation) == units
            [one] = differences(own.shard, generation).ranges
            assert one.first == right[one.start : one.stop].tobytes()
            assert one.later == bytes(units)

        work = partial(_given_up, one=plan(*job.steps), until=len(kept))
        add(f"behind-partial-{name}", [[*kept, *again]], job, work, check)


def _given_up(own: Scene, one: FlowPlan, until: int) -> None:
    generations = ShardGenerations(own.shard)
    with own.extractors() as [x]:
        generations.open_free()
        install(x, one)
        place_staged([x], {})
        while x.ring.tail < until:
            x.extract(min(5, until - x.ring.tail))
            place_staged([x], {})
        generation = own.shard.generation_of(1) or 0
        if own.shard.generation_state(generation) == GenerationState.OPEN:
            own.shard.mark_partial(generation)
        place_staged([x], {})
        while x.extract(5):
            place_staged([x], {})


def _a_step_late() -> None:
    """Copies of the first step come within the second one, one of them with other bytes: from the
    same mirror, or from another, which is behind by so much."""
    job = traffic(3, MESSAGES[:2])
    packets = packets_of([s for step in job.steps for s in step], immediate=False)
    others = [Send(bytes(len(s.data))) for step in job.steps for s in step]
    other = packets_of(others, immediate=False)[1]
    each = len(packets) // 3
    again = [packets[0], other, *packets[2:each]]
    one = plan(*job.steps[:2])
    once = [*packets[: each + 2], *again, *packets[each + 2 :]]
    for name, rings in (("", [once]), ("-over-rings", [packets, [*again, *packets[each:]]])):

        def check(own: Scene) -> None:
            whole(job)(own)
            assert list(own.files[:2]) == [1, PMTU_BYTES], own.files

        work = partial(_lagging, one=one, behind=each)
        # A kill between two rings' spans changes by how much one of them is behind.
        add(f"a-step-late{name}", rings, job, work, check, alike=len(rings) == 1)


def _lagging(own: Scene, one: FlowPlan, behind: int) -> None:
    """files: the iteration of which copies differ, and how many bytes. behind: slots by which the
    second ring is behind the first."""

    def tell(generation: int, last: bool) -> None:
        own.write_file(0, own.shard.iteration(generation))
        own.write_file(1, own.shard.conflict_bytes(generation))

    with own.extractors() as xs:

        def wanted() -> Iteration:
            return max(x.wanted_iteration for x in xs)

        generations = ShardGenerations(own.shard, wanted=wanted, differing=tell)
        done = 1
        while done:
            generations.open_free()
            for x in xs:
                install(x, one, frontier=True)
            settle(own, xs, generations)
            done = xs[0].extract(3)
            for x in xs[1:]:
                over = xs[0].ring.tail == xs[0].ring.head
                done += x.extract(3 if over else max(0, xs[0].ring.tail - behind - x.ring.tail))
            generations.report_late_conflicts()
            done += generations.open_free()


_numbered_in_a_run()
_owners()
_queue_pairs()
_replanned()
_full()
_lost()
_handed_over()
_others()
_behind_partial()
_a_step_late()


def main() -> None:
    twice, every = map(int, (sys.argv[2:] + ["0", "1"][len(sys.argv) - 2 :]))
    for name in sys.argv[1].split(","):
        print(name, explore(SCENES[name], twice, every), flush=True)


if __name__ == "__main__":
    main()
