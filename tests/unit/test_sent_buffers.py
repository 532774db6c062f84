"""Buffers that a forward sent: kept by step beside the replica, and behind a gradient in the shard,
where what they lack or contradict is no matter of the step's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from support.netib import Options, generate
from support.netib.shapes import SMALL

from flowcheck._core import lib
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState, GradientShard
from flowcheck.replica.checkpoint.frozen_and_buffers import (
    FrozenAndBuffers,
    forget_broadcast_buffers,
    from_json_dict,
    read_frozen_and_buffers,
    to_json_dict,
    write_broadcast_buffers,
    write_frozen_and_buffers,
)
from flowcheck.replica.param_layout import contiguous_stride
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import BufferBroadcast, LearnedJob, Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement, StatedTensor

BUFFERS = 96


def test_a_step_has_the_newest_buffers_of_it_or_of_a_step_before(tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    names = ("mean", "mask")
    began = {name: torch.zeros(3) for name in names}
    keys = tuple((name, name) for name in names)
    write_frozen_and_buffers(
        replica,
        FrozenAndBuffers(keys=keys, buffers=names, constant_buffers=("mask",), tensors=began),
    )
    for step in (2, 3, 5, 11):
        write_broadcast_buffers(replica, step, {"mean": torch.full((3,), float(step))}, first=3)
    of = {step: read_frozen_and_buffers(replica, step) for step in (1, 2, 3, 4, 5, 12)}
    found = {step: one.tensors["mean"][0].item() for step, one in of.items()}
    assert found == {1: 0, 2: 0, 3: 3, 4: 3, 5: 5, 12: 11}  # 2 went, as no version is so old
    assert {step: one.older(step) for step, one in of.items()} == {
        1: {"mean": 0}, 2: {"mean": 0}, 3: {}, 4: {"mean": 3}, 5: {}, 12: {"mean": 11}
    }  # fmt: skip
    again = replace(from_json_dict(to_json_dict(of[4])), tensors=of[4].tensors)
    assert again.older(4) == {"mean": 3}
    forget_broadcast_buffers(replica, 5)
    assert read_frozen_and_buffers(replica, 12).older(12) == {"mean": 3}


def test_what_lies_behind_a_gradient_keeps_no_step_from_being_whole(tmp_path: Path) -> None:
    with GradientShard.create(tmp_path / "shard", gradient_bytes=400, held_bytes=40) as shard:
        shard.begin(0, 1)
        words = lib.fc_shard_coverage(shard.handle, 0)
        for unit in range(100):
            words[unit // 64] |= 1 << unit % 64
        of = shard.handle.header.generations[0]
        of.covered_units = 100
        assert shard.missing(0) == () and shard.module_buffers(0) is None
        assert shard.finish(0) and shard.generation_state(0) == GenerationState.COMPLETE
        of.module_buffer_units = 10
        held = shard.module_buffers(0)
        assert held is not None and held.nbytes == 40
        of.module_buffer_conflict_bytes = 4
        assert (
            shard.module_buffers(0) is None
            and shard.generation_state(0) == GenerationState.COMPLETE
        )


def read(folder: Path, buffers: tuple[int, ...]) -> LearnedJob:
    """A job with a broadcast of float32 buffers before each step, and of two counters."""
    options = Options(shapes=SMALL, buffers=BUFFERS, counters=2, protocol="LL128", ranks=3)
    tape = read_capture_files(generate(options, folder).files)

    def tensor(name: str, size: tuple[int, ...], dtype: str, **more: bool) -> StatedTensor:
        each = getattr(torch, dtype).itemsize
        wire = Parameter(
            sizes=size, strides=contiguous_stride(size), element_bytes=each, dtype=dtype
        )
        return StatedTensor(name=name, wire=wire, **more)

    trained = [tensor(f"p{n}", size, "float32") for n, size in enumerate(SMALL)]
    more = {"has_gradient": False, "buffer": True}
    sent = [tensor(f"b{n}", (size,), "float32", **more) for n, size in enumerate(buffers)]
    counts = [tensor(f"c{n}", (), "int64", **more) for n in range(2)]
    model = OperatorStatement(
        parameters=tuple(t.wire for t in trained), module_tensors=(*trained, *sent, *counts)
    )
    job = read_stream(tape.flows, tape.messages, stated=model).job
    assert job is not None
    return job


def test_broadcasts_of_the_stated_buffers_have_places_behind_the_gradient(tmp_path: Path) -> None:
    job = read(tmp_path, (BUFFERS - 5, 5))
    assert job.buffer_broadcasts == (
        BufferBroadcast(numbers=(0, 1), nbytes=4 * BUFFERS),
        BufferBroadcast(numbers=(2, 3), nbytes=16),
    )
    size = 4 * BUFFERS + 16
    covered = np.zeros(size, bool)
    for plan in compile_flow_plans(job):
        for part in plan.each.segments:
            at = int(part["dst_byte"]) - job.gradient_bytes
            covered[max(0, at) : max(0, at + int(part["data_bytes"]))] = True
        first = plan.first.segments["dst_byte"]
        assert not len(first) or int(first.max()) < job.gradient_bytes
    assert covered.all() and job.module_buffer_bytes == size
