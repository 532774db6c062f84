"""What `flowcheck plan` computes and says of it, and what it refuses."""

from __future__ import annotations

import json

import pytest
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import NODES
from flowcheck.ops.planning.ddp_collectives import PlannedCollective
from flowcheck.ops.planning.wire_traffic import MirroredPort, traffic_of_collective
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol


def own(size: int) -> PlannedCollective:
    """A metric of the script's."""
    return PlannedCollective(
        kind=CollectiveKind.ALL_REDUCE, work_bytes=size, role=CollectiveRole.BUCKET
    )


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_of_a_ring_all_reduce(ranks: int, protocol: Protocol) -> None:
    """2 (R - 1) / R of the tensor in each direction, times what flags take."""
    planned = own(ranks * 1920 * 64)
    cost = traffic_of_collective(planned, MirroredPort(ranks=ranks, protocol=protocol, channels=1))
    data = planned.work_bytes * 2 * (ranks - 1) // ranks
    factor = {Protocol.LL: (2, 1), Protocol.LL128: (16, 15), Protocol.SIMPLE: (1, 1)}[protocol]
    assert cost.out.bytes == cost.into.bytes == data * factor[0] // factor[1]
    assert cost.out.messages == 2 * (ranks - 1) * cost.loops * cost.slices


def test_port_of_a_node_of_several_gpus_carries_what_its_last_one_sends() -> None:
    """Ring index 4 to 7 of 8: what rank 0 broadcasts comes in, and goes no further than there."""
    wire = MirroredPort(ranks=8, gpus=4, ring_index=4, protocol=Protocol.SIMPLE)
    told = PlannedCollective(
        kind=CollectiveKind.BROADCAST,
        work_bytes=4096,
        role=CollectiveRole.INITIAL_WEIGHTS,
        element_bytes=1,
    )
    assert (
        traffic_of_collective(told, wire).out.bytes,
        traffic_of_collective(told, wire).into.bytes,
    ) == (0, 4096)
    # Every chunk twice, but once that of who writes and that of the next one; the last is short.
    planned = own(7 * 64 + 8)
    cost = traffic_of_collective(planned, wire)
    assert cost.out.bytes == 2 * planned.work_bytes - 8 - 64
    assert cost.into.bytes == 2 * planned.work_bytes - 64 - 64
    with refused_as(NODES, kind=ConfigError, key="--gpus"):
        MirroredPort(ranks=8, gpus=3)


def test_the_worked_example_of_the_wire_format() -> None:
    """25 MiB of float32 on 4 ranks and 2 channels: 24 messages and 2 loops a channel."""
    planned = PlannedCollective(
        kind=CollectiveKind.ALL_REDUCE,
        work_bytes=25 << 20,
        role=CollectiveRole.BUCKET,
        element_bytes=4,
    )
    wire = MirroredPort(ranks=4, channels=2, protocol=Protocol.SIMPLE, era=NcclEra.V2_29)
    cost = traffic_of_collective(planned, wire)
    assert (cost.channels, cost.loops, cost.slices) == (2, 2, 2)
    assert (cost.out.messages, cost.out.bytes) == (48, 39_321_600)
    assert cost.chunk_bytes == 2_097_152
    assert cost.out.frames == 39_321_600 // 4096


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--world", "1"], "a ring has 2 ranks"),
        (["--world", "1000000000"], "at most 4,096 ranks"),
        (["--bucket-cap-mb", "nan"], "must be above 0"),
        (["--bucket-cap-mb", "-1"], "must be above 0"),
        (["--first-bucket-mb", "inf"], "must be above 0"),
        (["--protocol", "LL64"], "--protocol = 'LL64': not a known value"),
        (["--nccl", "3"], "--nccl = '3': is not a release number"),
        (["--hook", "int8"], "--hook = 'int8': no such hook"),
        (["--check"], "needs captures"),
        (["x.pcap"], "--check = 'not given'"),
        (["--ring-index", "2"], "must be from 0 to 1"),
        (["--optimizer", "madgrad"], "not a class of torch.optim in torch"),
        (["--optimizer", "adam", "--momentum", "0.9"], "adam has no momentum"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["plan", "torch.nn:Linear", *words])
    assert sentence in str(done.exception)


def test_the_table_and_the_json_say_the_same() -> None:
    words = ["plan", "torch.nn:Linear", "--set", "in_features=300", "--set", "out_features=200"]
    words += ["--world", "4", "--channels", "2"]
    table = CliRunner().invoke(app, words).stdout
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert f"{told['memory']['bytes']:,}" in table
    assert f"{told['each'][0]['planned']['work_bytes']:,}" in table
    assert all(one["sentence"] in table for one in told["assumed"])
    assert told["step"]["out"]["bytes"] == sum(cost["out"]["bytes"] for cost in told["each"])
