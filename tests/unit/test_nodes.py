"""Rings over nodes of several GPUs: who writes, by sizes and by the ranks named; what is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from support.found_codes import codes
from support.netib import Generated, Options, generate
from support.netib.nodes import log_of, order_of

from flowcheck.findings.catalog.connections import FIRST_GPU_OPEN, PLACES_BY_LOG, WRITER_BY_LOG
from flowcheck.findings.catalog.midstream_jobs import OTHER_NODES
from flowcheck.findings.finding import Finding
from flowcheck.ops.analysis.communicator_summary import summarize_communicators
from flowcheck.ops.analysis.communicator_text import communicator_lines
from flowcheck.ops.analysis.learned_communicators import summarize_learned_job
from flowcheck.ops.analysis.mirror_coverage import AllReduceShape, coverage_of
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_debug_log import parse_nccl_log
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import Send, collective
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.jobs.late.amid import Expected, join_expected
from flowcheck.wire.traffic.observed_messages import ObservedFlow, ObservedMessage
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement

ODD = ((31, 40), (31,), (7, 31), (7,))
EVEN = ((64, 64), (64,), (127, 64), (64,))
"""A whole number of lines and groups for each of four ranks."""


def told(options: Options, folder: Path, log: str = "") -> tuple[Generated, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    stated = OperatorStatement(rings=parse_nccl_log(log).orders) if log else None
    return made, read_stream(tape.flows, tape.messages, stated=stated)


def missed(made: Generated, reading: Reading) -> list[int]:
    """Gradients of which no whole copy was told."""
    found = {one.sha256 for one in reading.collectives}
    return [n for n, one in enumerate(made.truth.gradients) if one.sha256 not in found]


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("kind", CollectiveKind)
def test_each_channel_has_the_schedule_of_its_own_writer(
    kind: CollectiveKind, protocol: Protocol
) -> None:
    def of(sender: int | tuple[int, ...]) -> tuple[tuple[Send, ...], ...]:
        return collective(
            kind,
            300_000,
            sender=sender,
            ranks=8,
            channels=3,
            protocol=protocol,
            era=NcclEra.V2_29,
        )

    assert of((3, 1, 7)) == tuple(of(sender)[c] for c, sender in enumerate((3, 1, 7)))


def test_both_directions_of_one_node_carry_everything() -> None:
    shape = AllReduceShape(
        bytes=400_004, element_bytes=4, extra_sends=0, ranks=16, channels=2,
        protocol=Protocol.LL, nccl_era=NcclEra.V2_29, gpus=4,
    )  # fmt: skip
    both = coverage_of(shape, [(3, 1), (7, 5)])
    assert both.once_bytes == both.bytes and not both.missing_chunks and both.weights
    assert [gain.links for gain in both.gains] == [(2, 3)]
    out = coverage_of(shape, [(3, 1)])
    assert out.missing_chunks == (2, 4)
    # One chunk of sixteen on each channel.
    assert out.once_bytes / out.bytes == pytest.approx(15 / 16, abs=1e-3)


NODES = {
    "two-of-two-ll": Options(shapes=ODD, ranks=4, gpus=2, version=(2, 23), steps=2),
    "orders-simple": Options(
        shapes=ODD, ranks=8, gpus=2, orders=2, channels=2, protocol="Simple", version=(2, 21),
        mirrored=(2,), steps=2,
    ),
    "ports-ll128": Options(
        shapes=((96, 120), (120,), (50, 120)), ranks=6, gpus=3, channels=2, rails=2,
        protocol="LL128", version=(2, 19), steps=2,
    ),
    "long-ll": Options(shapes=ODD, ranks=64, gpus=8, version=(2, 29), mirrored=(5,), steps=2),
    # Ranks 4 and 0 are named: a ring of five or of six, of one GPU each or of two.
    "round-the-end": Options(
        shapes=ODD, ranks=6, gpus=2, orders=1, version=(2, 23), mirrored=(0,), steps=2, seed=1
    ),
    # The map of used parameters has short chunks, and no start tells yet whose they are.
    "map-simple": Options(
        shapes=(*ODD, (9,)), ranks=8, gpus=4, orders=1, version=(2, 26), protocol="Simple", steps=3,
        find_unused=True, caps_bytes=(1000, 2000), seed=3,
    ),
    "one-gpu-each": Options(shapes=ODD, ranks=40, version=(2, 29), mirrored=(5,), steps=2),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_gradients_are_read_bit_for_bit(name: str, tmp_path: Path) -> None:
    options = NODES[name]
    made, reading = told(options, tmp_path)
    assert not missed(made, reading)
    assert reading.job is not None and reading.job.communicators[0].gpus == options.gpus
    nodes = f" on {options.nodes} nodes of {options.gpus} GPUs" if options.gpus > 1 else ""
    for one in (summarize_communicators(reading), summarize_learned_job(reading.job)):
        assert f"a ring of {options.ranks} ranks{nodes}, " in communicator_lines(one)[0]
        assert any("carry everything" in line for line in communicator_lines(one))


def test_channel_whose_chunks_are_alike_is_refused_by_name(tmp_path: Path) -> None:
    plain = Options(shapes=EVEN, ranks=8, gpus=4, orders=1, version=(2, 29), steps=2)
    # Neither the first GPU of the node nor the last of its ring, which broadcasts would tell.
    drawn = [replace(plain, seed=seed) for seed in range(20)]
    options = next(one for one in drawn if order_of(one, 0).index(0) in (1, 2))

    def exit_of(one: Options) -> int:
        return order_of(one, 0)[-1]

    made, reading = told(options, tmp_path)
    assert reading.job is None and FIRST_GPU_OPEN.code in codes(reading.why_not[:1])
    assert len(missed(made, reading)) == len(made.truth.gradients)
    assert any(
        "8 ranks on 2 nodes of 4 GPUs" in line
        for line in communicator_lines(summarize_communicators(reading))
    )
    # NCCL's log tells who writes; that of another job, whose rank named writes nowhere, does not.
    made, reading = told(options, tmp_path, log_of(options))
    assert reading.job is not None and not missed(made, reading)
    assert any(one.is_any_of(WRITER_BY_LOG) for one in reading.job.assumed)
    other = next(o for o in drawn if exit_of(o) != exit_of(options))
    made, reading = told(options, tmp_path, log_of(other))
    assert reading.job is None
    # One odd tensor more tells who writes.
    made, reading = told(replace(options, shapes=(*EVEN, (1,))), tmp_path)
    assert reading.job is not None and not missed(made, reading)


def stated_of(made: Generated) -> Expected:
    shapes = made.truth.options.shapes
    return Expected(
        parameters=tuple(
            Parameter(sizes=s, strides=tuple(prod(s[at + 1 :]) for at in range(len(s))))
            for s in shapes
        ),
        buckets=tuple(map(tuple, made.truth.buckets)),
    )


def test_start_that_nobody_saw_is_not_made_up_for_by_a_stated_model(tmp_path: Path) -> None:
    """Sizes fit one rank of one GPU after the other as well; whom clear-to-send names does not."""
    options = Options(shapes=ODD, ranks=4, gpus=2, version=(2, 23), steps=6, start_step=2)
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    job, why = join_expected(stated_of(made), tape.flows, tape.messages, ended=True)
    assert job is None and why == OTHER_NODES()


@pytest.mark.parametrize("name", ["orders-simple", "alike-ll"])
def test_start_that_nobody_saw_is_made_up_for_by_a_stated_model_and_the_log(
    name: str, tmp_path: Path
) -> None:
    alike = Options(shapes=EVEN, ranks=8, gpus=4, orders=2, channels=2, version=(2, 29), seed=4)
    options = replace({**NODES, "alike-ll": alike}[name], steps=6)
    whole = told(options, tmp_path, log_of(options))[1].job
    assert whole is not None
    (tmp_path / "late").mkdir()
    made = generate(replace(options, start_step=2), tmp_path / "late")

    def joined(log: str) -> tuple[LearnedJob | None, Finding | None]:
        logged = parse_nccl_log(log).orders
        return join_expected(stated_of(made), *_tape(made), ended=True, logged=logged)

    job, why = joined(log_of(options))
    assert job is not None, why
    assert PLACES_BY_LOG.code in codes(job.assumed)
    mine, right = compile_flow_plans(job), {p.flow: p for p in compile_flow_plans(whole)}
    for plan in mine:
        assert plan.each.sends.tobytes() == right[plan.flow].each.sends.tobytes()
        assert plan.each.segments.tobytes() == right[plan.flow].each.segments.tobytes()
    exits = order_of(options, 0)[-1]
    drawn = (replace(options, seed=seed) for seed in range(50))
    other = next(one for one in drawn if order_of(one, 0)[-1] != exits)
    assert joined(log_of(other))[0] is None


def _tape(made: Generated) -> tuple[Sequence[ObservedFlow], Sequence[ObservedMessage]]:
    tape = read_capture_files(made.files)
    return tape.flows, tape.messages
