"""A job of whose initial weights a frame was lost is followed all the same: what the frame carried
is tainted from the start, all else is exact. Judged by torch's optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain as chained
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.differing import MASK, changed
from support.incarnations import JOB, Life, floats
from support.lives import Both
from support.staged import Chain
from test_base_command import Trainer, lines, notes
from test_lacking_step import CLIP, SETTINGS, Clipping
from test_replica_reset import given, play  # noqa: F401
from test_tainted_restart import ADAMW, SGD, PlainTrainer, alike, apart, replica_of

from flowcheck.config import HookConfig
from flowcheck.findings.catalog.trainer_hook import HOOK_OTHER_JOB
from flowcheck.hook.protocol import Answer, AnsweredParameter, Request
from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import CopiesDiffer
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import missing_of_weights, seen_of_weights, tainted_since
from flowcheck.stages.healing import hook_stage
from flowcheck.stages.healing.hook_client import Told
from flowcheck.stages.healing.hook_stage import heal_by_hook
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_learning.proved_job import ProvedJob
from flowcheck.stages.job_state.given_checkpoint_request import request_answer, submit_patch
from flowcheck.stages.job_state.heal_log import read_heal_records
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.staged_messages.silent_mirror_points import SILENT_S
from flowcheck.step_numbers import Step
from flowcheck.wire.learn import read_stream

HEADERS = 14 + 40 + 8 + 12
"""Bytes of Ethernet, IPv6, UDP and BTH."""
ICRC = 4
SAVED = 3
"""The step of the trainer's file."""


def begun(trainer: Trainer, folder: Path, *, seed: int = 1, number: int = 0) -> Life:
    """A life of the job that goes on from the trainer's state."""
    life = Life(replace(JOB, seed=seed), trainer.flat(), number=number)
    for step, gradient in enumerate(life.generate().gradients, 1):
        trainer.step(floats(gradient))
        if step == SAVED:
            trainer.save(folder / "step-3.pt", step)
    return life


def without_one_of_the_weights(life: Life) -> tuple[list[WireFrame], int]:
    """Its frames but for one amid the weights, and how many elements that carried."""
    frames = life.frames_of()
    full = [n for n, f in enumerate(life.frames_of(stop=life.starts[0])) if len(f.frame) > 1000]
    lost = frames.pop(full[len(full) // 2])
    # LL: half of what a line carries are flags.
    return frames, (len(lost.frame) - HEADERS - ICRC) // 2 // 4


def test_what_it_carried_is_tainted_from_the_start_and_all_else_is_exact(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    trainer = Trainer()
    began = trainer.flat()
    frames, carried = without_one_of_the_weights(begun(trainer, tmp_path))
    both = play(frames, optimizer=ADAMW)
    both.drive(until=lambda: both.update._opened() is not None)
    replica = replica_of(both)
    assert replica.step == 0 and replica.commit.tainted and replica.newest_exact is None
    exact = apart(replica)
    assert (~exact).sum() == carried and tainted_since(replica.tainted) == 0
    assert alike(replica, began)[exact].all() and not alike(replica, began)[~exact].any()
    both.drive()
    replica = replica_of(both)
    assert replica.step == JOB.steps == len(lines(both))
    assert (apart(replica) == exact).all()
    assert alike(replica, trainer.flat())[exact].all()
    assert f"initial weights are not known: {carried} of" in notes(both)


def test_large_weights_are_read_as_far_as_they_came_once_gradients_are_there(
    tmp_path: Path,
) -> None:
    job = replace(JOB, shapes=((256, 80), (80,), (10, 80), (10,)), channels=1)
    life = Life(job)
    sent = life.generate().weights
    frames, carried = without_one_of_the_weights(life)
    write_pcap(tmp_path / "lossy.pcap", frames)
    seen = read_capture_files([tmp_path / "lossy.pcap"])
    reading = read_stream(seen.flows, seen.messages, ended=False, hasty=True, results=False)
    assert reading.job is not None and reading.weights is not None
    weights = reading.weights
    assert weights.only_lacks and weights.certain_where_seen and not weights.complete
    [(start, stop)] = weights.missing
    assert stop - start == 4 * carried
    held = weights.data.tobytes()
    assert (held[:start], held[stop:]) == (sent[:start], sent[stop:])


def test_a_file_of_the_trainer_makes_them_exact(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    trainer = Trainer()
    frames, _ = without_one_of_the_weights(begun(trainer, tmp_path))
    both = play(frames, optimizer=ADAMW, gradient_log={"taken_steps": JOB.steps})
    both.drive(until=lambda: both.applied_iteration() > SAVED)
    given(both, tmp_path / "step-3.pt")
    both.drive()
    replica = replica_of(both)
    assert (replica.step, replica.tainted, replica.commit.tainted) == (JOB.steps, {}, False)
    assert alike(replica, trainer.flat()).all()


def test_values_of_the_hook_make_them_exact(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    trainer = PlainTrainer()
    wanted = PlainTrainer()
    life = begun(trainer, tmp_path)
    frames, carried = without_one_of_the_weights(life)
    both = play(frames, optimizer=SGD)
    both.drive(until=lambda: both.applied_iteration() >= SAVED)
    for gradient in life.truth.gradients[:SAVED]:
        wanted.step(floats(gradient))
    replica = replica_of(both)
    sections = {"parameters": wanted.flat()}
    values = patch_of_sections(replica.description, sections, replica.tainted_ranges)
    asked = submit_patch(both.chain.run, Step(SAVED), values, "the hook")
    both.drive()
    answer = request_answer(both.chain.run, asked)
    assert carried and answer is not None and answer.refused is None
    replica = replica_of(both)
    [told] = read_heal_records(both.chain.run)
    before = both.chain.run.steps.with_name("steps-before-healing.jsonl")
    [line] = before.read_bytes().splitlines()  # of the step that was healed, of no other one
    assert json.loads(line)["step"] == told.at and json.loads(line)["tainted"]
    of = [json.loads(one)["step"] for one in both.chain.run.steps.read_bytes().splitlines()]
    assert of == [*range(1, JOB.steps + 1)]
    assert (replica.step, replica.tainted) == (JOB.steps, {})
    assert alike(replica, trainer.flat()).all()


@pytest.mark.parametrize("theirs", ["another job's", "this job's"])
def test_a_hook_of_another_job_is_refused_as_that_and_records_nothing(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    theirs: str,
) -> None:
    """The same model, other weights. The hook of this job, asked next, heals."""
    trainer = PlainTrainer()
    frames, _ = without_one_of_the_weights(begun(trainer, tmp_path))
    both = play(frames, optimizer=SGD)
    both.drive()
    run, replica = both.chain.run, replica_of(both)
    values = trainer.flat() if theirs == "this job's" else trainer.flat() + np.float32(1)

    def told(_host: str, _port: int, _token: bytes, request: Request) -> Told:
        parameters = []
        for one in request.parameters:
            own = replica.layout.parameters[one.index]
            held = values[own.start : own.start + own.elements]
            value = b"".join(held[a:b].tobytes() for a, b in one.ranges)
            kind = replica.layout.dtype_of(own)
            parameters.append(
                AnsweredParameter(one.index, own.name, own.shape, kind, value, {}, {}, None)
            )
        return Told(Answer(JOB.steps, tuple(parameters)), 100)

    monkeypatch.setattr(hook_stage, "ask_hook", told)
    (tmp_path / "token").write_bytes(b"0123456789abcdef")
    addresses = ("10.0.0.7:1", "10.0.0.8:1")
    own = HookConfig(address=addresses, token_file=str(tmp_path / "token"))
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(heal_by_hook, run, own, addresses[1], replica.tainted_ranges)
        while not asked.done():
            both.update.work()
        why = asked.result()
    if theirs == "this job's":
        assert why is None and not replica_of(both).tainted
        return
    assert why is not None and why.is_any_of(HOOK_OTHER_JOB)
    assert addresses[1] in str(why) and "another job" in str(why)
    assert replica_of(both).tainted and not read_heal_records(run)
    assert "elements that no lost packet touched differ" not in notes(both)


def test_where_each_byte_may_matter_to_all_it_waits_for_a_file(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    assert CLIP and "clip_norm" in SETTINGS["optimizer"]
    trainer = Clipping()
    frames, _ = without_one_of_the_weights(begun(trainer, tmp_path))
    both = play(frames, **SETTINGS)
    both.drive(until=lambda: both.applied_iteration() > SAVED)
    assert incarnation_of(both.chain.run).lacking == 0
    assert not both.chain.run.steps.exists()
    given(both, tmp_path / "step-3.pt")
    both.drive()
    replica = replica_of(both)
    assert (replica.step, replica.tainted) == (JOB.steps, {})
    assert alike(replica, trainer.flat()).all()


def test_a_later_life_is_told_by_what_was_seen_of_its_weights(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    trainer = PlainTrainer()
    first = begun(trainer, tmp_path)
    frames, carried = without_one_of_the_weights(first)
    second = begun(trainer, tmp_path, seed=2, number=1)
    later, _ = without_one_of_the_weights(second)
    both = play(frames + later, optimizer=SGD)
    both.drive()
    replica = replica_of(both)
    assert replica.step == 2 * JOB.steps and incarnation_of(both.chain.run).number == 2
    exact = apart(replica)
    assert (~exact).sum() == carried  # the very frame was lost again, so nothing healed it
    assert alike(replica, trainer.flat())[exact].all()


def test_a_later_life_that_is_seen_whole_heals_the_first(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    trainer = PlainTrainer()
    frames, _ = without_one_of_the_weights(begun(trainer, tmp_path))
    second = begun(trainer, tmp_path, seed=2, number=1)
    both = play(frames + second.frames_of(), optimizer=SGD)
    both.drive()
    replica = replica_of(both)
    assert (replica.step, replica.tainted) == (2 * JOB.steps, {})
    assert alike(replica, trainer.flat()).all()


def test_bytes_of_the_wire_are_elements_of_the_state_whatever_their_strides() -> None:
    layout = Layout.of_shapes([(3, 4), (5,)])
    transposed = msgspec.structs.replace(layout.parameters[0], stride=(1, 3))
    other = msgspec.structs.replace(layout, parameters=(transposed, layout.parameters[1]))
    wire = np.arange(layout.elements, dtype=np.float32)
    for own in (layout, other):
        for missing in ([(4, 12), (13, 14)], [(44, 52)], [(0, 68)], []):
            there = np.ones(4 * layout.elements, np.bool_)
            for start, stop in missing:
                there[start:stop] = False
            whole = there.reshape(-1, 4).all(1)
            in_state = own.memory_order(wire).astype(int)
            assert (seen_of_weights(own, missing) == whole[in_state]).all()
            assert len(missing_of_weights(own, missing)) == 0 or not whole.all()


def test_where_each_byte_may_matter_a_restart_does_not_end_the_wait(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
) -> None:
    trainer = Clipping()
    frames, _ = without_one_of_the_weights(begun(Clipping(), tmp_path, seed=5))
    again = begun(trainer, tmp_path, seed=2, number=1)
    both = play(frames + again.frames_of(), **SETTINGS)
    both.drive(until=lambda: incarnation_of(both.chain.run).number == 2)
    both.drive(until=lambda: both.applied_iteration() > SAVED)
    assert incarnation_of(both.chain.run).lacking == 0
    given(both, tmp_path / "step-3.pt")
    both.drive()
    replica = replica_of(both)
    assert (replica.step, replica.tainted) == (JOB.steps, {})
    assert alike(replica, trainer.flat()).all()


def test_a_live_port_without_a_flow_is_not_waited_for(shm: Path, tmp_path: Path) -> None:
    """A file is: it may be far behind."""
    life = begun(Trainer(), tmp_path)
    paths = [tmp_path / "0.pcap", tmp_path / "1.pcap"]
    for path in paths:
        write_pcap(path, life.frames_of())
    chain = Chain(tmp_path, shm / "memory", paths, 4096)
    both = Both(chain, source=[{"file": "0"}, {"file": "1"}], optimizer=ADAMW)
    both.extract.work()
    try:
        chain.feed(4096, 0)
        for extractor in both.extract._extractors:
            extractor.extract(4096)
        for own_pace, waits in (((1,), True), ((), False)):
            learner = JobLearner(chain.run, own_pace=own_pace)
            found = learner.learn(both.extract._extractors, at_once=False, hurry=True, wait_s=60)
            learner.close()
            assert (found is None) == waits
    finally:
        both.close()


@pytest.mark.parametrize("right", [0, 1])
def test_where_copies_of_two_mirrors_differ_it_is_tainted_however_late_one_is(
    shm: Path, tmp_path: Path, right: int
) -> None:
    """The first mirror has brought the whole job when the second one begins."""
    trainer = Trainer()
    began = trainer.flat()
    life = begun(trainer, tmp_path)
    frames = life.frames_of()
    of_weights = range(len(life.frames_of(stop=life.starts[0])))
    at = [n for n in of_weights if len(frames[n].frame) > 1000][2]
    other = [*frames]
    other[at] = replace(frames[at], frame=changed(frames[at], [3, 4, 40]))
    paths = [tmp_path / "0.pcap", tmp_path / "1.pcap"]
    for path, way in zip(paths, (frames, other) if right == 0 else (other, frames), strict=True):
        write_pcap(path, way)
    chain = Chain(tmp_path, shm / "memory", paths, 4096)
    both = Both(chain, source=[{"file": "0"}, {"file": "1"}], optimizer=ADAMW)
    feed = chain.feed
    try:
        for _ in range(100):
            feed(4096, 0)
            both.extract.work()
        assert both.extract.drained() is False and not chain.run.learned_job.exists()
        both.drive()
        replica = replica_of(both)
        exact = apart(replica)
        assert (~exact).sum() == 3 and tainted_since(replica.tainted) == 0
        assert replica.step == JOB.steps and alike(replica, trainer.flat())[exact].all()
        assert_both_told(both, began, exact)
    finally:
        both.close()


def assert_both_told(both: Both, began: np.ndarray, exact: np.ndarray) -> None:
    """Of all elements that are not exact the file has what was sent and what `changed` makes of
    it."""
    report = json.loads(both.chain.run.differing_copies(0).read_bytes())
    assert report["step"] == 0 and report["all_placed"]
    found = []
    for one in report["elements"]:
        own = slice(one["start_byte"], one["stop_byte"])
        sent = began.tobytes()[own]
        values = {bytes.fromhex(one["first"]), bytes.fromhex(one["later"])} - {sent}
        [other] = values
        assert (np.frombuffer(sent, "<u4") ^ np.frombuffer(other, "<u4") == MASK).all()
        found += range(own.start // 4, own.stop // 4)
        sizes = np.cumsum([0, *(np.prod(shape) for shape in JOB.shapes)])
        number = int(one["parameter"].removeprefix("param."))
        assert one["start"] == own.start // 4 - sizes[number]
    assert sorted(found) == np.flatnonzero(~exact).tolist()
    [told] = [m for m in both.chain.heard.of(CopiesDiffer) if m.step == 0]
    assert told.conflict_bytes == 4 * len(found)


@pytest.mark.parametrize("right", [0, 1])
def test_where_copies_of_one_mirror_differ_these_elements_are_tainted(
    play: Callable[..., Both],  # noqa: F811
    tmp_path: Path,
    right: int,
) -> None:
    """It brings each packet of the weights twice, at its way in and its way out."""
    trainer = Trainer()
    began = trainer.flat()
    life = begun(trainer, tmp_path)
    of_weights = life.frames_of(stop=life.starts[0])
    at = [n for n, frame in enumerate(of_weights) if len(frame.frame) > 1000]
    pairs = [[frame, frame] for frame in of_weights]
    pairs[at[2]][right] = replace(of_weights[at[2]], frame=changed(of_weights[at[2]], [3, 40]))
    pairs[at[4]][right] = replace(of_weights[at[4]], frame=changed(of_weights[at[4]], [7]))
    both = play([*chained(*pairs), *life.frames_of()[len(of_weights) :]], optimizer=ADAMW)
    both.drive()
    replica = replica_of(both)
    exact = apart(replica)
    assert (~exact).sum() == 3 and tainted_since(replica.tainted) == 0
    assert replica.step == JOB.steps and alike(replica, trainer.flat())[exact].all()
    assert_both_told(both, began, exact)


@pytest.mark.parametrize("ends", [False, True], ids=["silent", "ended"])
def test_a_mirror_that_brings_nothing_more_is_not_waited_for(
    shm: Path, tmp_path: Path, ends: bool
) -> None:
    """One of two, in the weights, of which the other lost a frame."""
    life = begun(Trainer(), tmp_path)
    frames, carried = without_one_of_the_weights(life)
    whole = life.frames_of()
    cut = next(n for n, (a, b) in enumerate(zip(frames, whole, strict=False)) if a != b) - 5
    paths, now_s = [tmp_path / "0.pcap", tmp_path / "1.pcap"], [0.0]
    write_pcap(paths[0], frames)
    write_pcap(paths[1], whole[:cut] if ends else whole)
    chain = Chain(tmp_path, shm / "memory", paths, 256)
    both = Both(chain, source=[{"file": "0"}, {"file": "1"}], optimizer=ADAMW)
    both.extract.work()
    extractors = both.extract._extractors
    learner = JobLearner(chain.run, clock=lambda: now_s[0])

    def read(come: int) -> ProvedJob | None:
        """Once so many more frames of the first mirror came."""
        for at in range(0, come, 64):
            chain.feed(min(64, come - at), 0)
            for extractor in extractors:
                extractor.extract(256)
        now_s[0] += SILENT_S + 1
        return learner.learn(extractors, at_once=False, hurry=True, wait_s=60)

    try:
        chain.feed(1, cut)
        if ends:
            chain.feed(1, 64)
        found = read(len(frames) - 40)
        if not ends:
            assert found is None, "it may lag"
            found = read(20)
        assert found is not None
        [(start, stop)] = found.job.weights_missing
        assert stop - start == 4 * carried
    finally:
        learner.close()
        both.close()
