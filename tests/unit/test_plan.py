"""From a learned job to tables: judged by moving real bytes through them, and by a capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support.refused_as import refused_as

from flowcheck.errors import LearnError
from flowcheck.findings.catalog.earlier_files import EARLIER_SENTENCE
from flowcheck.findings.catalog.job_learning import ALL_ALIKE, COPIES_DIFFER, EVERY_SEND_FITS, NODES
from flowcheck.findings.catalog.midstream_jobs import SAME_JOB
from flowcheck.findings.catalog.refused_files import NOT_A_LEARNED_JOB, UNKNOWN_FORMAT
from flowcheck.findings.catalog.sharded_jobs import HYBRID
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import all_reduce
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import SEGMENT, SEND, MessageTable, compile_flow_plans
from flowcheck.wire.training_job.learned_job import (
    CollectiveOp,
    Communicator,
    Edge,
    LearnedJob,
    Parameter,
    PointToPoint,
    Role,
    decode_job,
    encode_job,
)

SIZES = ((5, 7), (3,), (), (40, 9), (11,))
BUCKETS = ((4, 3), (2, 0, 1))
RING = {"ranks": 3, "channels": 2, "protocol": Protocol.LL, "era": NcclEra.V2_29}


def flow(number: int) -> FlowKey:
    return FlowKey(source="a", destination="b", dest_qp=number)


def parameters() -> tuple[Parameter, ...]:
    return tuple(Parameter(sizes=s, strides=(1,) * len(s)) for s in SIZES)


def reduce_of(bucket: int, elements: int) -> CollectiveOp:
    return CollectiveOp(
        communicator=0,
        protocol=Protocol.LL,
        role=Role.BUCKET,
        bucket=bucket,
        work_bytes=elements * 4,
    )


def job(**changes: Any) -> LearnedJob:
    counts = [p.elements for p in parameters()]
    flags = CollectiveOp(
        communicator=0, protocol=Protocol.LL, role=Role.IGNORED, kind=CollectiveKind.BROADCAST
    )
    plan = {
        "era": NcclEra.V2_29,
        "communicators": (Communicator(ranks=3, channels=2),),
        "edges": (
            Edge(communicator=0, sender=0, flows=(flow(10), flow(11)), first_numbers=(4, 5)),
            Edge(communicator=0, sender=1, flows=(flow(20), flow(21)), first_numbers=(6, 7)),
        ),
        "parameters": parameters(),
        "first_buckets": (tuple(range(5)),),
        "buckets": BUCKETS,
        "first": (reduce_of(0, sum(counts)), msgspec.structs.replace(flags, work_bytes=24)),
        "each": tuple(reduce_of(i, sum(counts[p] for p in b)) for i, b in enumerate(BUCKETS)),
        "evidence": (EVERY_SEND_FITS(ranks=3, channels=2),),
    }
    return LearnedJob(**(plan | changes))


def place(table: MessageTable, payloads: list[bytes], state: Any) -> None:
    """What the extractor does with whole messages, byte by byte obedient."""
    assert len(table.sends) == len(payloads)
    for send, payload in zip(table.sends, payloads, strict=True):
        assert send["wire_bytes"] == -(-len(payload) // 8) * 16
        first = send["first_segment"]
        pieces = table.segments[first : first + send["segments"]]
        assert send["kind"] == SendKind.FINAL or not len(pieces)
        for piece in pieces:
            start, stop = int(piece["data_byte"]), int(piece["data_byte"] + piece["data_bytes"])
            target = state[piece["dst_byte"] : piece["dst_byte"] + stop - start]
            target[:] = np.frombuffer(payload[start:stop], np.uint8)


def run(
    job_: LearnedJob, sender: int, ops: tuple[CollectiveOp, ...], buckets: Any, gradient: Any
) -> Any:
    """[channel][message] payloads that the ring sends over one edge for `ops`."""
    channels: list[list[bytes]] = [[], []]
    ends = np.cumsum([0] + [p.nbytes for p in job_.parameters])
    for op in ops:
        if op.role is Role.IGNORED:
            channels[0].append(bytes(op.work_bytes))
            continue
        flat = np.concatenate([gradient[ends[i] : ends[i + 1]] for i in buckets[op.bucket]])
        for channel, sends in enumerate(all_reduce(op.work_bytes, sender=sender, **RING)):
            for send in sends:
                stop = send.start_byte + send.data_bytes
                carried = flat[send.start_byte : stop].tobytes()
                channels[channel].append(carried if send.final else bytes(len(carried)))
    return channels


def test_the_tables_put_every_byte_of_both_layouts_in_registration_order() -> None:
    learned = job()
    gradient = np.random.default_rng(1).integers(1, 255, learned.state_bytes, np.uint8)
    plans = {plan.flow: plan for plan in compile_flow_plans(learned)}
    assert [plans[flow(n)].first_number for n in (10, 11, 20, 21)] == [4, 5, 6, 7]
    for ops, buckets, part in (
        (learned.first, learned.first_buckets, "first"),
        (learned.each, learned.buckets, "each"),
    ):
        state = np.zeros(learned.state_bytes, np.uint8)
        for edge in learned.edges:
            sent = run(learned, edge.sender, ops, buckets, gradient)
            for key, payloads in zip(edge.flows, sent, strict=True):
                assert key is not None
                place(getattr(plans[key], part), payloads, state)
        assert (state == gradient).all()


def test_tables_have_the_layout_of_the_c_structs() -> None:
    header = (Path(__file__).parents[2] / "dpdk_ext/core/fc_plan.h").read_text()
    for struct, dtype in (("fc_send", SEND), ("fc_segment", SEGMENT)):
        body = header.split(f"struct {struct} {{")[1].split("};")[0]
        at = [body.index(name) for name in dtype.names or ()]
        assert at == sorted(at)
    assert (SEND.itemsize, SEGMENT.itemsize) == (16, 16)


def test_unmirrored_channels_have_no_plan() -> None:
    edge = Edge(communicator=0, sender=0, flows=(None, flow(11)), first_numbers=(0, 5))
    assert [plan.flow for plan in compile_flow_plans(job(edges=(edge,)))] == [flow(11)]


def test_a_job_survives_its_file_and_foreign_files_are_refused() -> None:
    learned = job()
    assert decode_job(encode_job(learned)) == learned
    for wrong in (b"", b"{}", b"[1]", encode_job(learned).replace(b">=2.29", b"3.7")):
        with refused_as(NOT_A_LEARNED_JOB, kind=LearnError):
            decode_job(wrong)
    with refused_as(UNKNOWN_FORMAT, kind=LearnError, format=9):
        decode_job(encode_job(job(format=9)))


def test_a_file_of_sentences_is_read_as_well() -> None:
    rests = (ALL_ALIKE(), SAME_JOB().until_audited(), COPIES_DIFFER().until_audited())
    learned = job(evidence=(NODES(ranks=8, nodes=2, gpus=4), HYBRID()), assumed=rests)
    earlier = json.loads(encode_job(learned))
    for name in ("evidence", "assumed"):
        earlier[name] = [one["sentence"] for one in earlier[name]]
    read = decode_job(json.dumps(earlier | {"format": 2}).encode())
    assert list(map(str, read.evidence)) == list(map(str, learned.evidence))
    assert list(map(str, read.assumed)) == list(map(str, rests))
    assert [one.until_audit for one in read.assumed] == [False, True, True]
    assert all(one.is_any_of(EARLIER_SENTENCE) for one in (*read.evidence, *read.assumed))
    assert decode_job(encode_job(read)) == read
    same = {"evidence": learned.evidence, "assumed": learned.assumed}
    assert msgspec.structs.replace(read, **same) == learned
    for wrong in ({"evidence": [{}]}, {"assumed": 5}, {"rule": "3.7"}, {"each": None}):
        with refused_as(NOT_A_LEARNED_JOB, kind=LearnError):
            decode_job(json.dumps(earlier | {"format": 2} | wrong).encode())


def test_captured_job_is_complete_with_its_point_to_point_send(truth: Path) -> None:
    """One direction of a real job: sizes in the tables are the sizes on the wire."""
    seen = json.loads((truth / "iter_40000_p2p_iter2.json").read_text())
    ring_sizes = [s["bytes"] for s in seen["nccl_sends"] if s["proto"] == "LL"]
    p2p_sizes = [s["bytes"] for s in seen["nccl_sends"] if s["proto"] != "LL"]
    p2p = CollectiveOp(
        communicator=1,
        protocol=Protocol.SIMPLE,
        role=Role.BUCKET,
        kind=None,
        messages=(PointToPoint(channel=0, start_byte=12_288, data_bytes=7712),),
    )
    indices = CollectiveOp(
        communicator=0,
        protocol=Protocol.LL,
        role=Role.IGNORED,
        kind=CollectiveKind.BROADCAST,
        work_bytes=8,
    )
    reduce_all = reduce_of(0, 5000)
    learned = LearnedJob(
        era=NcclEra.V2_19,
        communicators=(Communicator(ranks=2, channels=1), Communicator(ranks=2, channels=1)),
        edges=(
            Edge(communicator=0, sender=0, flows=(flow(1),), first_numbers=(3,)),
            Edge(communicator=1, sender=0, flows=(flow(2),), first_numbers=(0,)),
        ),
        parameters=(Parameter(sizes=(1, 5000), strides=(5000, 1)),),
        first_buckets=((0,),),
        buckets=((0,),),
        first=(reduce_all, p2p, indices, indices),
        each=(reduce_all, p2p),
    )
    ring, extra = compile_flow_plans(learned)
    due = [*ring.first.sends["wire_bytes"], *ring.each.sends["wire_bytes"]]
    assert due == ring_sizes[ring.first_number :]
    assert [*extra.first.sends["wire_bytes"], *extra.each.sends["wire_bytes"]] == p2p_sizes
    placed = np.zeros(20_000, np.uint8)
    for piece in np.concatenate([ring.each.segments, extra.each.segments]):
        placed[piece["dst_byte"] : piece["dst_byte"] + piece["data_bytes"]] += 1
    assert (placed == 1).all()
