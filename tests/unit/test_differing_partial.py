"""Copies that come when their step has gone on without a packet: they are compared with what came
of it, and what it lacks stays away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.differing import come
from support.incarnations import JOB, Life
from support.lives import Both, Killed
from support.staged import Chain

from flowcheck._core import lib
from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.roce_frames import crc_invariant
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import CopiesDiffer, StepApplied, StepDoubtful, StepLost, StepShort
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState, GradientShard
from flowcheck.stages.extraction.shard_generations import ShardGenerations
from flowcheck.stages.replica_update.grad_norm_exchange import GradNormExchange
from flowcheck.stages.replica_update.gradient_sources.shard_source import ShardSource
from flowcheck.stages.replica_update.step_log import StepLog

STEP, MESSAGE = 3, 14
"""A result of the third step that rank 0 sends."""
LOST, KEPT = 3, 5
"""Packets of it: the mirror lost one."""


class Late:
    """A chain whose third step lacks a packet, and the packets of the message to come again."""

    def __init__(self, folder: Path, memory: Path) -> None:
        life = Life(JOB)
        truth = life.generate()
        frames = life.frames_of()
        own = [
            wire
            for wire in frames
            if (wire.kind, wire.sender, wire.message) == ("data", 0, MESSAGE)
        ]
        self.copies: list[WireFrame] = own
        write_pcap(folder / "life.pcap", [wire for wire in frames if wire is not own[LOST]])
        self.both = Both(Chain(folder, memory, [folder / "life.pcap"], 256))
        self.truth = np.frombuffer(truth.gradients[STEP - 1], np.uint8)

    def until_partial(self) -> None:
        """Until the third step has gone on; the replica is at the second."""
        both, update = self.both, self.both.update.work
        both.update.work = lambda: update() if both.applied_iteration() < STEP - 1 else 0  # type: ignore[method-assign]
        both.drive(until=lambda: bool(both.chain.heard.of(StepShort)))
        both.update.work = update  # type: ignore[method-assign]

    def come(self, *frames: bytes) -> None:
        """They come, and are extracted."""
        come(self.both, self.copies[KEPT].time_ns, *frames)
        self.assert_as_it_was()

    def assert_as_it_was(self) -> None:
        """What came is right, and what never came is zero and missing."""
        with GradientShard.open(self.both.chain.run.shard) as shard:
            generation = shard.generation_of(STEP)
            assert generation is not None
            assert shard.generation_state(generation) == GenerationState.PARTIAL
            [(start, stop)] = shard.missing(generation)
            gradient = shard.gradient(generation).copy()
            self.absent = stop - start
            assert 0 < self.absent <= 1024 and not gradient[start:stop].any()
            gradient[start:stop] = self.truth[start:stop]
            assert np.array_equal(gradient, self.truth)

    def heard(self, kind: type) -> list[Any]:
        return self.both.chain.heard.of(kind)

    def taken(self) -> list[int]:
        return sorted({m.step for m in self.heard(StepApplied)})


@pytest.fixture
def late(shm: Path, tmp_path: Path) -> Iterator[Late]:
    opened = Late(tmp_path, shm / "memory")
    yield opened
    opened.both.close()


def other(wire: WireFrame) -> bytes:
    """With one bit of its last data word another, before the flag, and an ICRC that is right."""
    ip, udp, transport = wire.frame[14:54], wire.frame[54:62], bytearray(wire.frame[62:-4])
    assert crc_invariant(ip, udp, bytes(transport)) == wire.frame[-4:]
    transport[-5] ^= 1
    return wire.frame[:62] + bytes(transport) + crc_invariant(ip, udp, bytes(transport))


def assert_without(late: Late) -> None:
    """Every step is made; what differs of it is tainted beside what it lacks."""
    late.both.drive()
    assert late.taken() == list(range(1, JOB.steps + 1)) and not late.heard(StepLost)
    line = json.loads(late.both.chain.run.steps.read_text().splitlines()[STEP - 1])
    assert line["missing_elements"] == late.absent // 4 + 1
    assert not late.heard(StepDoubtful)
    assert late.heard(CopiesDiffer)[-1].conflict_bytes == 4


def assert_told(late: Late) -> None:
    late.both.drive()
    assert late.taken() == list(range(1, JOB.steps + 1)) and not late.heard(StepLost)
    told = {(m.step, m.conflict_bytes, m.elements) for m in late.heard(StepDoubtful)}
    assert told == {(STEP, 4, 1)}
    assert late.heard(StepApplied)[-1].tainted == late.absent // 4 + 1


def test_equal_copies_change_nothing_and_fill_nothing(late: Late) -> None:
    late.until_partial()
    late.come(*(wire.frame for wire in late.copies))
    late.both.drive()
    assert late.taken() == list(range(1, JOB.steps + 1))
    assert not late.heard(StepLost) and not late.heard(StepDoubtful)
    assert late.heard(StepApplied)[-1].tainted


def test_other_bytes_of_what_never_came_say_nothing(late: Late) -> None:
    late.until_partial()
    late.come(other(late.copies[LOST]))
    late.both.drive()
    assert late.taken() == list(range(1, JOB.steps + 1)) and not late.heard(StepDoubtful)


def test_a_copy_that_differs_before_the_replica_looks_costs_its_element(late: Late) -> None:
    late.until_partial()
    late.come(other(late.copies[KEPT]))
    assert_without(late)


def test_a_copy_that_differs_while_the_step_is_made_costs_its_element(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = GradNormExchange.clipped, [other(late.copies[KEPT])]

    def clipped(self: Any, layout: Any, step: int, *rest: Any) -> Any:
        if step == STEP and left:
            late.come(left.pop())
        return real(self, layout, step, *rest)

    late.until_partial()
    monkeypatch.setattr(GradNormExchange, "clipped", clipped)
    assert_without(late)
    assert not left


@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_that_differs_behind_the_commit_is_told(
    late: Late, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    real, left = StepLog.write, [other(late.copies[KEPT])]

    def write(self: StepLog, replica: Any, *rest: Any) -> None:
        if replica.step == STEP and left:
            late.come(left.pop())
            if killed:
                raise Killed
        real(self, replica, *rest)

    late.until_partial()
    monkeypatch.setattr(StepLog, "write", write)
    assert_told(late)
    assert not left


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[GradientShard]:
    """An iteration of which a half came, and which has gone on without the rest."""
    with GradientShard.create(tmp_path / "shard", gradient_bytes=64, unit_bytes=4) as made:
        made.begin(0, 1)
        lib.fc_shard_coverage(made.handle, 0)[0] = 0xFF
        made.handle.header.generations[0].covered_units = 8
        made.mark_partial(0)
        yield made


def differ(shard: GradientShard) -> None:
    shard.handle.header.generations[0].conflict_bytes += 4


def test_parameters_go_on_without_any_byte_of_it_and_are_not_doubted(
    shard: GradientShard,
) -> None:
    told: list[int] = []
    stage = ShardGenerations(shard, doubtful=lambda step, _: told.append(step), alone=True)
    source = ShardSource(shard)
    arrived = source.arrived(1)
    assert arrived is not None and arrived.certain() and list(arrived.unbelieved) == [(32, 64)]
    differ(shard)  # while the parameters are taken
    assert not arrived.certain() and arrived.doubted and not stage.conflict_undecided
    again = source.arrived(1)
    assert again is not None and again.certain() and list(again.unbelieved) == [(0, 64)]
    assert stage.waiting
    source.release(1)
    stage.report_late_conflicts()
    assert not told


def test_parameters_that_were_taken_before_are_in_doubt(shard: GradientShard) -> None:
    told: list[int] = []
    stage = ShardGenerations(shard, doubtful=lambda step, _: told.append(step), alone=True)
    arrived = ShardSource(shard).arrived(1)
    assert arrived is not None and arrived.certain()
    shard.apply(1)
    differ(shard)
    stage.report_late_conflicts()
    assert told == [1] and not arrived.doubted


def test_what_the_replica_passes_is_passed_whatever_differs(shard: GradientShard) -> None:
    """It waits for the trainer's checkpoint: no byte of the iteration is used."""
    told: list[int] = []
    stage = ShardGenerations(shard, doubtful=lambda step, _: told.append(step))
    differ(shard)
    arrived = ShardSource(shard).arrived(1)
    assert arrived is not None and arrived.certain() and arrived.unbelieved
    assert stage.waiting and not stage.conflict_undecided
    shard.apply(1)
    stage.report_late_conflicts()
    assert not told
