"""One mirrored direction, one rank named: jobs whose writers nothing tells are refused, the others
are told as the generator made them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, generate
from support.netib.drawn import drawn_nodes
from support.netib.nodes import log_of, ranks_of, visible

from flowcheck.findings.catalog.connections import FIRST_GPU_OPEN, NODES_OPEN
from flowcheck.findings.catalog.job_learning import WRITERS_OPEN
from flowcheck.findings.finding import Entry, Finding
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_debug_log import parse_nccl_log
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.align.predicted import predicted
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.search.communicators import ring_and_p2p, rules_told
from flowcheck.wire.learn.search.other_nodes import nodes_open
from flowcheck.wire.training_job.operator_statements import OperatorStatement

ALIKE = ((96, 40), (96,), (30, 96), (30,), (7, 30))
"""Six ranks have as much of each bucket on the wire, in LL."""
ODD = ((31, 40), (31,), (7, 31), (7,))
ONE_EACH = Options(
    ranks=6, version=(2, 23), dtype="bfloat16", shapes=ALIKE, caps_bytes=(4000, 20000), steps=2,
    directions="tx", mirrored=(2,),
)  # fmt: skip


def told(options: Options, folder: Path, log: bool = False) -> tuple[Reading, set[str | None]]:
    """(what is read, the hashes of the true gradients)."""
    folder.mkdir()
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    rings = parse_nccl_log(log_of(options)).orders if log else ()
    reading = read_stream(
        tape.flows, tape.messages, stated=OperatorStatement(rings=rings) if log else None
    )
    return reading, {one.sha256 for one in made.truth.gradients}


def reason_of(reading: Reading) -> Finding:
    why = reading.why_not[0]
    reason = why.arguments["reason"]
    assert reading.job is None and why.is_any_of(WRITERS_OPEN) and isinstance(reason, Finding)
    return reason


def writers_of(reading: Reading) -> set[tuple[int, int]]:
    """(channel, ring index of the writer) of the job's links."""
    assert reading.job is not None
    used = range(reading.job.communicators[0].channels)
    return {(c, edge.sender_of(c)) for edge in reading.job.edges for c in used if edge.flows[c]}


def true_writers(options: Options) -> set[tuple[int, int]]:
    """The same, of the links that the mirrored node's one direction carries."""
    found, end = set(), options.directions == "rx"
    for channel in range(options.channels):
        ranks = ranks_of(options, channel)
        for index in visible(options, channel):
            if ranks[(index + end) % options.ranks] // options.gpus in options.mirrored:
                found.add((channel, index))
    return found


# By the trainer's program: 54, 65; by the search: 21, 48 (ports that were guessed to be of a host).
@pytest.mark.parametrize("seed", [54, 65, 21, 48])
def test_nodes_of_two_are_not_taken_for_others(seed: int, tmp_path: Path) -> None:
    options = drawn_nodes(seed)
    assert options.directions == "tx" and options.gpus == 2
    assert reason_of(told(options, tmp_path / "tx")[0]).is_any_of(NODES_OPEN)
    # The log of rank 0 has the ring, and says nothing of nodes.
    assert reason_of(told(options, tmp_path / "log", log=True)[0]).is_any_of(NODES_OPEN)
    reading, gradients = told(replace(options, directions="both"), tmp_path / "both")
    assert reading.job is not None and reading.job.communicators[0].gpus == 2
    assert gradients <= {one.sha256 for one in reading.collectives}


def test_log_is_not_read_for_nodes_of_a_guessed_size(tmp_path: Path) -> None:
    """Four ports look like two hosts of three GPUs each, and the log's ring fits those as well."""
    options = drawn_nodes(11)
    assert options.gpus == 2
    assert reason_of(told(options, tmp_path / "log", log=True)[0]).is_any_of(NODES_OPEN)


# 66: a ring of eight GPUs a node, taken for one of one each; 76: two channels, and both were read
# with the rank that is named last on a link.
@pytest.mark.parametrize(("seed", "reason"), [(66, NODES_OPEN), (76, FIRST_GPU_OPEN)])
def test_writers_that_the_log_tells_are_told_by_it_alone(
    seed: int, reason: Entry, tmp_path: Path
) -> None:
    options = drawn_nodes(seed)
    assert reason_of(told(options, tmp_path / "open")[0]).is_any_of(reason)
    reading, _ = told(options, tmp_path / "log", log=True)
    assert writers_of(reading) == true_writers(options)


def test_a_ring_of_one_gpu_each_is_told_where_no_other_nodes_fit(tmp_path: Path) -> None:
    assert reason_of(told(ONE_EACH, tmp_path / "alike")[0]).is_any_of(NODES_OPEN)
    # Five ranks are of no other nodes; a short chunk is of one writer.
    for name, options in {
        "five": replace(ONE_EACH, ranks=5, shapes=((100, 40),)),
        "odd": replace(ONE_EACH, shapes=ODD),
    }.items():
        reading, _ = told(options, tmp_path / name)
        assert writers_of(reading) == true_writers(options)


def test_copies_that_differ_speak_against_other_nodes(tmp_path: Path) -> None:
    """Where both links were seen: what the other one forwards is the sum of the same chunk."""
    made = generate(replace(ONE_EACH, directions="both"), tmp_path)
    tape = read_capture_files(made.files)
    flows = sort_flows(tape.flows, tape.messages)
    streams, _ = ring_and_p2p(flows.streams)
    foretold = predicted(streams, flows.grants, Known(rules=rules_told(flows)))
    assert foretold is not None
    cuts = foretold.communicators[0].cuts
    assert [edge.sender for edge in cuts.ring.edges] == [1, 2]

    def written_by(*writers: int) -> Cuts:
        edges = zip(cuts.ring.edges, writers, strict=True)
        ring = replace(
            cuts.ring,
            edges=tuple(replace(edge, otherwise=((2, writer),)) for edge, writer in edges),
        )
        return replace(cuts, ring=ring)

    assert not nodes_open(written_by(1, 3))
    # Both one rank on: sizes and copies are as they were.
    assert nodes_open(written_by(2, 3))
    # To rank 0 no broadcast goes.
    assert not nodes_open(written_by(4, 5))
    assert not nodes_open(written_by(1, 2))
