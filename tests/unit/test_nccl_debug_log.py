"""Rings as NCCL's own log has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.found_codes import codes
from support.netib import Options, generate
from support.netib.manners import Manners
from support.netib.nodes import log_of
from support.refused_as import refused_as

from flowcheck.config import SourceConfig, load_job
from flowcheck.errors import ConfigError, LearnError
from flowcheck.findings.catalog.connections import RING_PLACE_OPEN, WRITER_BY_LOG
from flowcheck.findings.catalog.nccl_transport import ANOTHER_JOB, NO_RINGS
from flowcheck.findings.catalog.refused_settings import UNREADABLE
from flowcheck.ops.job_setup.job_file_references import with_nccl_log
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_debug_log import RingOrder, other_job_finding, parse_nccl_log
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.operator_statements import OperatorStatement

# Two nodes of eight GPUs, NCCL_DEBUG=INFO, under torchrun (which puts its own words before).
LOG = """\
[default0]:node1:417:417 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
[default0]:NCCL version 2.21.5+cuda12.4
[default0]:node1:417:902 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
[default0]:node1:417:902 [0] NCCL INFO Channel 00/02 :    0   7   6   5   4   3   2   1   8  15  14  13  12  11  10   9
[default0]:node1:417:902 [0] NCCL INFO Channel 01/02 :    0   3   2   1   7   6   5   4  12  11  10   9  15  14  13   8
[default1]:node1:418:903 [1] NCCL INFO Trees [0] 2/-1/-1->1->0
[default0]:node1:417:902 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
[default2]:node1:419:999 [2] NCCL INFO Channel 00/04 : 0 1
[default2]:node1:419:999 [2] NCCL INFO Channel 01/04 : 0 1
"""  # noqa: E501


def test_rings_of_every_communicator_are_read() -> None:
    logged = parse_nccl_log(LOG)
    assert logged.version == "2.21.5"
    first, second = logged.orders
    assert first.ranks == 16 and len(first.channels) == 2 and first.channels[0][8:10] == (8, 15)
    assert second.ranks == 0 and second.channels == ((0, 1), (0, 1))


def test_who_leaves_a_node_is_told_by_its_place_in_the_ring() -> None:
    ring = parse_nccl_log(LOG).orders[0]

    def index(rank: int, channel: int = 0, ranks: int = 16, gpus: int = 8) -> int | None:
        return ring.index_of(rank, channel=channel, ranks=ranks, gpus=gpus)

    assert [index(1), index(9)] == [7, 15]  # the ranks before 8 and before 0
    assert index(8) is None and index(0) is None
    assert [index(4, 1), index(8, 1)] == [7, 15]
    assert index(1, channel=2) is None
    assert index(1, ranks=8) is None
    assert index(1, gpus=4) is None  # ranks 0, 7, 6, 5 are on two nodes of four


def test_line_that_was_cut_tells_the_nodes_behind_where_they_go_round_alike() -> None:
    nodes = [tuple(node * 8 + n for n in (3, 0, 1, 2, 5, 4, 7, 6)) for node in range(4)]
    flat = [rank for node in nodes for rank in node]
    ring = (*flat[1:], flat[0])
    cut = RingOrder(ranks=32, channels=(ring[:20],))
    whole = RingOrder(ranks=32, channels=(ring,))
    for rank in range(32):
        # Rank 30 leaves the last node; the very last place of the ring is that node's first rank.
        told = cut.index_of(rank, channel=0, ranks=32, gpus=8)
        assert told == whole.index_of(rank, channel=0, ranks=32, gpus=8)
        assert (told is not None) == (rank % 8 == 6)


@pytest.mark.parametrize("text", ["", "NCCL version 2.21.5\n", "Channel 01/02 : 0 1\n"])
def test_log_without_rings_is_refused(text: str) -> None:
    with refused_as(NO_RINGS, kind=LearnError):
        parse_nccl_log(text)


def test_job_file_names_the_log(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    log = tmp_path / "rank0.log"
    job.write_text(f'nccl_log = "{log}"\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n')
    sources = (SourceConfig(file="x.pcap"),)
    with refused_as(UNREADABLE, kind=ConfigError):
        with_nccl_log(load_job(job, sources=sources))
    log.write_text(LOG)
    config = with_nccl_log(load_job(job, sources=sources))
    assert config.release is NcclEra.V2_20 and config.stated is not None
    assert len(config.stated.rings) == 2


def test_log_of_another_job_is_said() -> None:
    orders = parse_nccl_log(LOG).orders
    assert other_job_finding(orders, [16, 4]) is None and other_job_finding(orders, []) is None
    assert other_job_finding(orders, [4, 4]) == ANOTHER_JOB(logged=(2, 16), seen=(4,))


def test_log_tells_where_ranks_of_one_gpu_lie_that_sizes_leave_open(tmp_path: Path) -> None:
    # Chunks of as many LL128 groups each, and a ring in another order than that of ranks.
    options = Options(
        seed=6,
        ranks=5,
        channels=3,
        protocol="LL128",
        version=(2, 26),
        shapes=((60, 40), (60,), (50, 60)),
        mirrored=(1,),
        mtu=4096,
        steps=2,
        manners=Manners(ring="one"),
    )
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    open_ = read_stream(tape.flows, tape.messages)
    assert open_.job is None
    assert RING_PLACE_OPEN.code in codes(open_.why_not[:1])
    log = parse_nccl_log(log_of(options))
    told = read_stream(tape.flows, tape.messages, stated=OperatorStatement(rings=log.orders))
    found = {one.sha256 for one in told.collectives}
    assert told.job is not None and {one.sha256 for one in made.truth.gradients} <= found
    channels = [
        one.arguments["channel"] for one in told.job.assumed if one.is_any_of(WRITER_BY_LOG)
    ]
    assert channels == [0, 1, 2], "each of them says what it rests on"
