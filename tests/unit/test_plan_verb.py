"""The verb `plan`: what it says of rings and memory, and how it holds a plan against captures."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowcheck.config.optimizer_config import OptimizerConfig
from flowcheck.findings.catalog.plan_figures import (
    DIFFERS_IN_ITERATION,
    DIFFERS_IN_START_UP,
    NO_ALL_REDUCE,
    OTHER_NUMBERS,
    OWN_COLLECTIVE_AS_MAP,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.planning.ddp_collectives import (
    DdpOptions,
    PlannedCollective,
    ddp_traffic,
)
from flowcheck.ops.planning.memory_estimate import estimate_memory
from flowcheck.ops.planning.meta_device_model import MetaModel
from flowcheck.ops.planning.plan_vs_captures import CheckResult, ExpectedWire, check
from flowcheck.ops.planning.wire_traffic import MirroredPort, traffic_of_collective
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol, round_up
from flowcheck.wire.learn import Collective
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import StatedTensor

RANKS = 4
STATED = ExpectedWire(ranks=RANKS)


def tensor(name: str, size: int) -> StatedTensor:
    wire = Parameter(sizes=(size,), strides=(1,), element_bytes=4, dtype="float32")
    return StatedTensor(name=name, wire=wire)


MODEL = MetaModel(
    name="Net",
    tensors=tuple(tensor(f"p{n}", 1000 + n) for n in range(6)),
    buffers=(tensor("mean", 300),),
    ready=(5, 4, 3, 2, 1, 0),
)
OPTIONS = DdpOptions(cap_bytes=8_000)


def captured(
    planned: list[PlannedCollective], *, protocol: Protocol = Protocol.LL, communicator: int = 0
) -> list[Collective]:
    """A capture of just these, as `read_stream` tells it."""
    numbers = count()
    return [collective(next(numbers), one, protocol, communicator) for one in planned]


def collective(
    index: int, planned: PlannedCollective, protocol: Protocol, communicator: int = 0
) -> Collective:
    grain = {Protocol.LL: 8, Protocol.LL128: 1920, Protocol.SIMPLE: 1}[protocol]
    blocks = RANKS if planned.kind is CollectiveKind.ALL_GATHER else 1
    size = round_up(planned.work_bytes, grain) * blocks
    result = np.zeros(size, np.uint8)
    said = np.array(planned.values, "<i8" if planned.value_bytes == 8 else "<i4")
    result[: said.nbytes] = said.view(np.uint8)
    return Collective(
        index=index,
        kind=str(planned.kind),
        communicator=communicator,
        protocol=protocol,
        ranks=RANKS,
        channels=1,
        bytes=size,
        covered_bytes=size,
        missing=(),
        result=result,
        conflicts=0,
        sources=(),
        assumed=(),
        first_ns=index,
        placements=(),
    )


def own(size: int) -> PlannedCollective:
    """A metric of the script's."""
    return PlannedCollective(
        kind=CollectiveKind.ALL_REDUCE, work_bytes=size, role=CollectiveRole.BUCKET
    )


def all_of(iterations: int, options: DdpOptions = OPTIONS) -> list[PlannedCollective]:
    traffic = ddp_traffic(MODEL, options)
    rounds = [*traffic.first, *[traffic.each] * iterations][:iterations]
    return [*traffic.start_up, *(one for part in rounds for one in part)]


def held(planned: list[PlannedCollective], **words: Any) -> CheckResult:
    return check(ddp_traffic(MODEL, OPTIONS), STATED, captured(planned, **words))


def difference(found: CheckResult) -> Finding:
    assert found.difference is not None
    return found.difference


@pytest.mark.parametrize("protocol", Protocol)
def test_a_capture_of_the_plan_is_as_planned(protocol: Protocol) -> None:
    found = held(all_of(5), protocol=protocol)
    assert (found.difference, found.iterations, found.own_collectives) == (None, 5, ())


def test_what_the_script_itself_reduces_is_told_apart() -> None:
    """A barrier before all, a metric amid an iteration, one as large as a bucket behind another."""
    planned = all_of(5)
    at = len(all_of(3))
    bucket = planned[-1]
    planned[at + 2 : at + 2] = [own(24)]
    planned.insert(len(planned) - 1, own(bucket.work_bytes + 800))
    found = held([own(1), *planned, own(1)])
    assert (found.difference, found.iterations) == (None, 5)
    assert sum(times for _, times in found.own_collectives) == 4


def test_a_second_communicator_is_left_alone() -> None:
    other = captured([own(100_000)] * 9, communicator=1)
    found = check(ddp_traffic(MODEL, OPTIONS), STATED, [*other, *captured(all_of(3))])
    assert (found.difference, found.iterations) == (None, 3)


def test_a_capture_that_begins_later_is_held_against_iterations_alone() -> None:
    for begin in range(len(all_of(2)), len(all_of(3))):
        found = held(all_of(6)[begin:])
        assert (found.difference, found.from_start) == (None, False)


def test_one_bucket_more_or_less_or_of_another_size_differs() -> None:
    whole, at = all_of(6), len(all_of(4))
    differs = difference(held(whole[:at] + whole[at + 2 :]))
    assert differs.is_any_of(DIFFERS_IN_ITERATION)
    assert (differs.arguments["iteration"], differs.arguments["what"]) == (4, "buffers")
    resized = [*whole]
    resized[at + 1 :] = [own(one.work_bytes + 320) for one in whole[at + 1 :]]
    found = held(resized)
    differs = difference(found)
    assert differs.is_any_of(DIFFERS_IN_ITERATION) and differs.arguments["iteration"] == 4
    assert found.index == at + 1
    assert found.matching == at + 1


def test_in_the_start_up_nothing_may_come_between() -> None:
    planned = all_of(4)
    found = held([*planned[:2], own(8), *planned[2:]])
    differs = difference(found)
    assert differs.is_any_of(DIFFERS_IN_START_UP) and differs.arguments["what"] == "initial weights"
    assert found.index == 2


WAYS = {
    "default": OPTIONS,
    "capped otherwise": DdpOptions(cap_bytes=4_000),
    "unused": DdpOptions(cap_bytes=8_000, find_unused_parameters=True),
    "static": DdpOptions(cap_bytes=8_000, static_graph=True),
    "no buffers": DdpOptions(cap_bytes=8_000, broadcast_buffers=False),
    "hook": DdpOptions(cap_bytes=8_000, hook="fp16"),
}


@pytest.mark.parametrize("made", WAYS)
@pytest.mark.parametrize("planned", WAYS)
def test_a_job_is_as_planned_with_its_own_settings_alone(planned: str, made: str) -> None:
    found = check(ddp_traffic(MODEL, WAYS[planned]), STATED, captured(all_of(6, WAYS[made])))
    assert (found.difference is None) is (planned == made), found


def test_a_map_of_used_parameters_is_named_as_what_it_may_be() -> None:
    found = check(ddp_traffic(MODEL, OPTIONS), STATED, captured(all_of(6, WAYS["static"])))
    assert any(what.is_any_of(OWN_COLLECTIVE_AS_MAP) for what, _ in found.own_collectives)


def test_no_all_reduce_is_a_difference() -> None:
    assert held(list(ddp_traffic(MODEL, OPTIONS).start_up)).difference == NO_ALL_REDUCE()


def test_what_the_bucket_plan_says_is_compared_where_it_was_seen() -> None:
    planned = all_of(3)
    at = next(n for n, one in enumerate(planned) if one.role is CollectiveRole.BUCKET_ORDER)
    seen = captured(planned)
    seen[at].result[0] ^= 1
    found = check(ddp_traffic(MODEL, OPTIONS), STATED, seen)
    assert difference(found).arguments["why"] == OTHER_NUMBERS(number=4, place=0, planned=5)


def test_memory_is_counted_by_parameter() -> None:
    adam = OptimizerConfig(name="adamw", learning_rate=0.1)
    traffic = ddp_traffic(MODEL, OPTIONS)
    costs = [traffic_of_collective(one, MirroredPort(ranks=2)) for one in traffic.start_up]
    parts = {part.what: part.bytes for part in estimate_memory(MODEL, adam, costs, 2).parts}
    size = 4 * sum(1000 + n for n in range(6))
    assert parts["parameters"] == size
    assert parts["optimizer states"] == 2 * size + 4 * 6
    assert parts["the step being made"] == 3 * size + 4 * 6
    assert parts["gradients"] == 2 * size
    assert parts["staging"] == 2 * sum(cost.out.bytes + cost.into.bytes for cost in costs)


def test_the_replica_takes_the_memory_that_is_said(tmp_path: Path) -> None:
    from flowcheck.replica.model_replica import Replica
    from flowcheck.replica.param_layout import Layout

    adam = OptimizerConfig(name="adamw", learning_rate=0.1)
    keep = 1 << 20
    said = {p.what: p.bytes for p in estimate_memory(MODEL, adam, [], 1, keep_bytes=keep).parts}
    layout = Layout.of_shapes([one.wire.sizes for one in MODEL.trained])
    weights = np.zeros(layout.elements, "<f4")
    replica = Replica.create(tmp_path / "replica", layout, adam, weights, keep_bytes=keep)
    replica.close()
    kinds = ("parameters", "optimizer states", "the step being made", "earlier steps")
    due = sum(said[kind] for kind in kinds)
    assert due <= (tmp_path / "replica").stat().st_size <= due * 1.1 + (1 << 16)
