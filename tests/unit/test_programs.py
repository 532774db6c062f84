"""Jobs that are laid out as DistributedDataParallel's program foretells, judged by the generator's
truth: the right job or none, at any count of messages, and no search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.netib import Options, Truth, generate
from support.netib.nodes import log_of, order_of, ranks_of, visible

from flowcheck.findings.catalog.job_learning import WRITERS_OPEN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.plane.mirror_merge.mirror_point_merge import MergedView
from flowcheck.wire.collectives.nccl_debug_log import parse_nccl_log
from flowcheck.wire.learn import Reading, read, read_stream
from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.align.predicted import predicted
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import ring_and_p2p, rules_told
from flowcheck.wire.learn.trainer.aligner import Aligner, Way
from flowcheck.wire.programs.script import sums
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage
from flowcheck.wire.training_job.learned_job import Role
from flowcheck.wire.training_job.operator_statements import OperatorStatement

ODD = ((67, 101), (67,), (13, 67), (13,), (3, 5, 7))
WIDE = ((300, 311), (311,), (90, 311), (91,))
CAPS = (6000, 17000)
EVEN = ((64, 64), (64,), (127, 64), (64,))
"""A whole number of lines for each of four ranks, and of eight."""
MIXED = ((1024, "LL"), (12000, "LL128"))
JOBS = {
    "ll": Options(ranks=3, shapes=ODD, caps_bytes=CAPS),
    "ll, five ranks, float16": Options(
        ranks=5, shapes=((900, 801), (7,)), dtype="float16", channels=3, version=(2, 23)
    ),
    "ll128": Options(
        ranks=4, shapes=WIDE, protocol="LL128", version=(2, 23), channels=2, caps_bytes=CAPS
    ),
    "simple": Options(
        ranks=4, shapes=WIDE, protocol="Simple", version=(2, 30), channels=4, caps_bytes=CAPS
    ),
    "mixed, bfloat16": Options(
        ranks=8, shapes=WIDE, protocol="Simple", mix=MIXED, version=(2, 26), channels=2,
        dtype="bfloat16", caps_bytes=CAPS, mirrored=(5,),
    ),
    "hook": Options(ranks=3, shapes=ODD, protocol="Simple", version=(2, 29), compress="bfloat16"),
    "buffers": Options(ranks=3, shapes=ODD, buffers=96, counters=2, caps_bytes=CAPS),
    "metrics": Options(
        ranks=4, shapes=WIDE, protocol="LL128", mix=((1024, "LL"),), version=(2, 23), channels=2,
        buffers=96, metric_every=2,
    ),
    "static graph": Options(ranks=3, shapes=ODD, static_graph=True, caps_bytes=CAPS),
    "unused parameters": Options(ranks=3, shapes=ODD, find_unused=True),
    "two queue pairs": Options(ranks=4, shapes=ODD, version=(2, 21), qps=2, caps_bytes=CAPS),
    "trees": Options(
        ranks=4, shapes=WIDE, channels=2, version=(2, 23), tree_below=1 << 30, mirrored=(2,),
        caps_bytes=(40000, 90000),
    ),
    "trees and rings": Options(
        ranks=3, shapes=WIDE, channels=2, version=(2, 26), protocol="Simple", mix=MIXED,
        tree_below=60000, mirrored=(1,), caps_bytes=(40000, 90000),
    ),
    "metrics of a group": Options(
        ranks=3, shapes=ODD, channels=2, version=(2, 21), metrics_group=True, caps_bytes=CAPS
    ),
    "metrics, LL128": Options(
        ranks=3, protocol="LL128", shapes=ODD, channels=2, version=(2, 26), metrics_group=True,
        beside_first=True, caps_bytes=CAPS,
    ),
    "a tensor-parallel neighbour": Options(
        shapes=ODD, version=(2, 30), tensor_layers=1, tensor_near=True, random_qpns=True,
    ),
    "one direction": Options(ranks=4, shapes=WIDE, mirrored=(2,), directions="tx"),
    "a long ring": Options(ranks=40, shapes=ODD, version=(2, 29), mirrored=(5,)),
    "two ports": Options(ranks=4, shapes=WIDE, version=(2, 30), channels=4, rails=2),
    "two nodes of two GPUs": Options(
        ranks=4, gpus=2, orders=2, shapes=WIDE, protocol="LL128", version=(2, 23), channels=2,
        caps_bytes=CAPS, mirrored=(1,),
    ),
    "two nodes of eight GPUs, four ports": Options(
        seed=20, ranks=16, gpus=8, orders=2, shapes=WIDE, protocol="Simple", version=(2, 30),
        channels=4, rails=4, buffers=64, caps_bytes=(40000, 90000), mirrored=(1,), steps=3,
    ),
    "three nodes of four GPUs, two ports": Options(
        ranks=12, gpus=4, orders=2, shapes=WIDE, version=(2, 26), channels=4, rails=2, buffers=96,
        metric_every=2, caps_bytes=(40000, 90000), mirrored=(2,),
    ),
    "trees over nodes": Options(
        ranks=9, gpus=3, shapes=WIDE, channels=2, version=(2, 23), tree_below=1 << 30,
        tree_chain="back", mirrored=(2,), caps_bytes=(40000, 90000),
    ),
    "trees and rings over nodes": Options(
        ranks=12, gpus=4, orders=2, shapes=WIDE, channels=2, version=(2, 26), protocol="Simple",
        mix=MIXED, tree_below=60000, mirrored=(1,), caps_bytes=(40000, 90000),
    ),
    "one direction of a node": Options(
        seed=1, ranks=12, gpus=3, orders=2, shapes=WIDE, version=(2, 30), channels=3, mirrored=(1,),
        metric_every=2, directions="tx",
    ),
}  # fmt: skip


def _jobs(*by_night: str) -> pytest.MarkDecorator:
    """by_night: what a test does with these jobs is reached by day with others, branch by branch;
    each job is in one of the tests of the day at least."""
    assert JOBS.keys() >= set(by_night)
    of = [pytest.param(n, marks=[pytest.mark.nightly] * (n in by_night)) for n in JOBS]
    return pytest.mark.parametrize("captured", of, indirect=True)


@pytest.fixture(scope="module")
def captured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MergedView, Truth]:
    made = generate(JOBS[request.param], tmp_path_factory.mktemp("job"))
    return read_capture_files(made.files), made.truth


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the search fails."""

    def asked(*args: object) -> None:
        raise AssertionError("the search was asked")

    monkeypatch.setattr(read, "find_communicators", asked)


def _is_true(reading: Reading, truth: Truth) -> None:
    """The job is the generator's."""
    job, options = reading.job, truth.options
    assert job is not None, reading.why_not
    assert [parameter.sizes for parameter in job.parameters] == list(options.shapes)
    assert job.communicators[0].ranks == options.ranks
    assert job.communicators[0].channels == options.channels
    ring = [edge for edge in job.edges if edge.receiver is None]
    channels = range(options.channels)
    assert {tuple(map(edge.sender_of, channels)) for edge in ring} == _senders(options)
    if options.directions == "both":  # One link alone does not tell how large nodes are.
        assert job.communicators[0].gpus == options.gpus
    plan = [list(bucket) for bucket in job.buckets]
    assert plan[: len(plan) - job.has_usage_map] == truth.buckets
    assert job.has_usage_map is options.find_unused
    sizes = [op.work_bytes for op in job.each if op.role is Role.BUCKET]
    assert (
        sum(sizes[: len(truth.buckets)])
        == job.gradient_bytes - 4 * len(job.parameters) * options.find_unused
    )


def _senders(options: Options) -> set[tuple[int, ...]]:
    """[channel] ring index of who writes on it, of each link that is mirrored."""
    links = defaultdict[tuple[int, int], list[int]](list)
    for channel in range(options.channels):
        ranks = ranks_of(options, channel)
        for index in visible(options, channel):
            after = ranks[(index + 1) % len(ranks)]
            links[ranks[index] // options.gpus, after // options.gpus].append(index)
    sent = options.directions == "tx"
    return {tuple(of) for (a, _), of in links.items() if a in options.mirrored or not sent}


@_jobs(
    "ll, five ranks, float16", "two nodes of eight GPUs, four ports", "trees", "two ports",
    "trees and rings over nodes", "trees over nodes", "simple", "two nodes of two GPUs",
    "one direction of a node", "metrics, LL128", "metrics", "mixed, bfloat16", "one direction",
    "trees and rings",
)  # fmt: skip
def test_the_job_and_its_bytes_are_the_true_ones(
    captured: tuple[MergedView, Truth], no_search: None
) -> None:
    _all_is_true(*captured)


def _all_is_true(seen: MergedView, truth: Truth) -> None:
    """The job is the generator's, and so are its weights and gradients."""
    reading = read_stream(seen.flows, seen.messages)
    _is_true(reading, truth)
    assert reading.weights is not None
    assert reading.weights.data is not None
    assert reading.weights.data.tobytes() == truth.weights
    gradients = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert len(gradients) == len(truth.gradients)
    if truth.options.directions == "both":
        told = [collective.sha256 for collective in gradients]
        assert told == [collective.sha256 for collective in truth.gradients]


@_jobs(
    "two nodes of two GPUs", "ll128", "two ports", "metrics of a group",
    "three nodes of four GPUs, two ports", "a long ring",
)  # fmt: skip
@pytest.mark.parametrize("looks", [4, pytest.param(40, marks=pytest.mark.nightly)])
def test_at_any_count_of_messages_it_is_the_true_job_or_none(
    captured: tuple[MergedView, Truth], looks: int
) -> None:
    seen, truth = captured
    messages = sorted(seen.messages, key=lambda message: message.order)
    known = False
    for count in range(8, len(messages), max(1, len(messages) // looks)):
        reading = read_stream(seen.flows, messages[:count], ended=False, hasty=True, results=False)
        if reading.job is not None:
            _is_true(reading, truth)
            known = True
    assert known


@pytest.mark.parametrize("name", ["metrics", "one direction of a node"])
def test_while_a_number_is_on_its_way_no_search_is_made(
    name: str, tmp_path: Path, no_search: None
) -> None:
    made = generate(replace(JOBS[name], metric_every=1), tmp_path)
    seen = read_capture_files(made.files)
    messages = sorted(seen.messages, key=lambda message: message.order)
    known = False
    for count in range(len(messages) // 4, len(messages), max(1, len(messages) // 80)):
        reading = read_stream(seen.flows, messages[:count], ended=False, hasty=True, results=False)
        if reading.job is not None:
            _is_true(reading, made.truth)
            known = True
    assert known


@_jobs(
    "ll, five ranks, float16", "metrics, LL128", "ll128", "metrics of a group", "simple",
    "a long ring", "trees over nodes", "mixed, bfloat16", "three nodes of four GPUs, two ports",
    "trees and rings over nodes", "one direction",
)  # fmt: skip
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_of_what_was_lost_nothing_false_is_told_and_another_size_is_not_foretold(
    captured: tuple[MergedView, Truth], every: int
) -> None:
    seen, truth = captured
    own = _foretold(seen, seen.messages)
    assert own
    data = [
        place
        for place, message in enumerate(seen.messages)
        if message.immediate is not None and message.wire_bytes and message.flow in own
    ]
    for place in data[3 :: len(data) // 5][::every]:
        message = seen.messages[place]
        lost = [*seen.messages[:place], *seen.messages[place + 1 :]]
        if _foretold(seen, lost):
            _nothing_is_false(read_stream(seen.flows, lost), truth)
        other = replace(message, wire_bytes=message.wire_bytes + 4096, payload=_longer(message))
        changed = [*seen.messages[:place], other, *seen.messages[place + 1 :]]
        # Nothing but the wire tells how many bytes buffers have.
        assert truth.options.buffers or not _foretold(seen, changed)


def _nothing_is_false(reading: Reading, truth: Truth) -> None:
    """Whatever is told whole is the generator's."""
    held = {each.sha256 for each in truth.collectives}
    sums = [one for one in reading.collectives if one.kind == "all_reduce" and not one.assumed]
    assert all(one.sha256 is None or one.sha256 in held for one in sums)
    weights = reading.weights
    if weights is not None and weights.data is not None and weights.sha256 is not None:
        assert weights.data.tobytes() == truth.weights


def _longer(message: ObservedMessage) -> NDArray[np.uint8]:
    return message.payload.repeat(2)[:1].repeat(message.wire_bytes + 4096)


def _foretold(seen: MergedView, messages: Sequence[ObservedMessage]) -> set[FlowKey]:
    """The connections that the trainer's program foretells."""
    flows = sort_flows(seen.flows, messages)
    streams, _ = ring_and_p2p(flows.streams)
    told = predicted(streams, flows.grants, Known(rules=rules_told(flows)))
    return {
        key
        for communicator in (told.communicators if told is not None else ())
        if communicator.habits.shapes
        for edge in communicator.ring.edges
        for stream in edge.streams
        for key in stream.queue_pairs
    }


def test_who_writes_is_told_by_numbers_that_a_script_reduces(
    tmp_path: Path, no_search: None
) -> None:
    """All chunks of the gradients are alike, and those of the metrics are not."""
    options = Options(
        seed=18, ranks=16, gpus=8, orders=2, shapes=WIDE, protocol="LL128", version=(2, 23),
        channels=4, rails=2, caps_bytes=(40000, 90000), mirrored=(1,), steps=2,
    )  # fmt: skip
    made = generate(replace(options, metric_every=2), tmp_path)
    _all_is_true(read_capture_files(made.files), made.truth)


def test_writers_that_nothing_tells_are_said_without_a_search(
    tmp_path: Path, no_search: None
) -> None:
    """All chunks are alike: only NCCL's log tells which GPU of a node comes first."""
    plain = Options(shapes=EVEN, ranks=8, gpus=4, orders=1, version=(2, 29), steps=2)
    drawn = (replace(plain, seed=seed) for seed in range(20))
    options = next(one for one in drawn if order_of(one, 0).index(0) in (1, 2))
    made = generate(options, tmp_path)
    seen = read_capture_files(made.files)
    reading = read_stream(seen.flows, seen.messages)
    assert reading.job is None
    assert [why.code for why in reading.why_not] == [WRITERS_OPEN.code]
    logged = OperatorStatement(rings=parse_nccl_log(log_of(options)).orders)
    reading = read_stream(seen.flows, seen.messages, stated=logged)
    _is_true(reading, made.truth)
    told = {collective.sha256 for collective in reading.collectives}
    assert told >= {collective.sha256 for collective in made.truth.gradients}


@pytest.mark.parametrize(("gpus", "directions"), [(1, "tx"), (2, "both")])
def test_gathers_are_no_sums_where_nobody_is_seen_forwarding(
    gpus: int, directions: str, tmp_path: Path
) -> None:
    """As many sends of one size as an all-reduce of two gathers' blocks has."""
    options = Options(
        ranks=4, gpus=gpus, shapes=((64, 64),), sharded=True, directions=directions,
        version=(2, 23), steps=1,
    )  # fmt: skip
    assert not _sums(options, tmp_path, sends=2 * options.ranks - 2)
    metrics = replace(options, sharded=False, shapes=ODD, metric_every=1)
    made = generate(metrics, tmp_path)
    seen = read_capture_files(made.files)
    reading = read_stream(seen.flows, seen.messages)
    numbers = [c for c in made.truth.collectives if c.kind == "all_reduce" and not c.gradient]
    told = [c for c in reading.collectives if c.kind == "all_reduce" and not c.meaning]
    assert len(told) == len(numbers) > 0
    assert _foretold(seen, seen.messages)


def _sums(options: Options, folder: Path, *, sends: int) -> list[Way]:
    """Ways in which the first so many sends of each connection are sums."""
    seen = read_capture_files(generate(options, folder).files)
    flows = sort_flows(seen.flows, seen.messages)
    own: dict[tuple[str, str], Stream] = {}
    for stream in ring_and_p2p(flows.streams)[0]:
        first = {number: stream.sends[number] for number in range(sends)}
        assert len({send.wire_bytes for send in first.values()}) == 1
        own[stream.key.source, stream.key.destination] = replace(stream, sends=first, table=None)
    sent = {stream.key.source: stream for stream in own.values()}
    edges = tuple(
        Edge(sender=place * options.gpus, streams=(stream,))
        for place, (_, stream) in enumerate(sorted(sent.items()))
    )
    ring = Ring(
        ranks=options.ranks, edges=edges, channels=1, extra_sends=0, rules=rules_told(flows),
        penalty=0, gpus=options.gpus,
    )  # fmt: skip
    return Aligner(ring).followed(sums)


@pytest.mark.parametrize(
    "options",
    [
        Options(shapes=ODD, dtypes=("float32", "float32", "bfloat16", "bfloat16", "float32")),
        Options(ranks=3, shapes=ODD, find_unused=True, caps_bytes=CAPS),
        Options(shapes=ODD, steps=6, start_step=2),
    ],
    ids=["several dtypes", "other caps", "no start-up"],
)
def test_what_the_program_does_not_know_is_left_to_the_search(
    options: Options, tmp_path: Path
) -> None:
    made = generate(options, tmp_path)
    seen = read_capture_files(made.files)
    assert not _foretold(seen, seen.messages)
