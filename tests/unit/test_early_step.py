"""Steps that begin before all gradients are there end with the bytes of those that wait."""

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.extraction import Bench, bench
from support.refused_as import refused_as

from flowcheck._core import ffi, lib
from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.replica_state_errors import STEP_IS_OVER
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.concurrent_reader import pin_step
from flowcheck.stages.replica_update.early_step import EarlyStep
from flowcheck.stages.replica_update.gradient_sources.shard_source import ShardSource

LAYOUT = Layout.of_shapes([(300, 7), (1,), (5000,), (64,), (3, 3)])
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-3, amsgrad=True)
WEIGHTS = np.random.default_rng(1).standard_normal(LAYOUT.elements).astype(np.float32)


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(LAYOUT.elements).astype(np.float32)


class Arriving:
    """A replica and a shard whose bytes come as a test says, as the extractor writes them."""

    def __init__(self, folder, config=ADAMW, *, keep_bytes=0, shard=None, **more):
        self.path = folder / "replica"
        self.replica = Replica.create(self.path, LAYOUT, config, WEIGHTS, keep_bytes=keep_bytes)
        self.waiting = Replica.create(folder / "waiting", LAYOUT, config, WEIGHTS)
        own = {"gradient_bytes": LAYOUT.gradient_bytes}
        self.shard = shard or GradientShard.create(folder / "shard", **own)
        coverage = ShardSource(self.shard).partial
        self.ahead = EarlyStep(self.replica, coverage, **{"alone": True, "least_bytes": 1} | more)

    def put(self, generation: int, values: np.ndarray, start: int, stop: int, settled=True):
        """Elements [start, stop) come."""
        data = self.shard.gradient(generation).view(np.float32)
        data[start:stop] = values[start:stop]
        words = lib.fc_shard_coverage(self.shard.handle, generation)
        size = -(-LAYOUT.elements // 64) * 8
        bits = np.frombuffer(ffi.buffer(words, size), np.uint8)
        there = np.unpackbits(bits, bitorder="little")
        there[start:stop] = 1
        bits[:] = np.packbits(there, bitorder="little")
        self.shard.handle.header.generations[generation].covered_units = int(there.sum())
        if settled:
            lib.fc_shard_settle(self.shard.handle)

    def look(self, step: int) -> int:
        """Looks, lets the extractor go on once, and looks again."""
        self.ahead.apply_available(step, step)
        lib.fc_shard_settle(self.shard.handle)
        return self.ahead.apply_available(step, step)

    def end(self, step: int, generation: int) -> None:
        assert self.shard.finish(generation)
        self.ahead.finish(step, self.shard.gradient(generation), None)
        self.shard.apply(step)

    def assert_as(self, values: np.ndarray) -> None:
        """The replica is where one is that was given `values` whole."""
        self.waiting.apply(self.waiting.step + 1, values)
        assert self.replica.step == self.waiting.step
        assert self.replica.digest == self.waiting.digest
        assert self.replica.tensor_digests == self.waiting.tensor_digests

    def close(self):
        self.shard.close()
        self.replica.close()
        self.waiting.close()


@pytest.fixture
def arriving(tmp_path):
    made = Arriving(tmp_path)
    yield made
    made.close()


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    cuts=st.lists(st.integers(1, LAYOUT.elements - 1), max_size=8, unique=True), seed=st.integers()
)
def test_whatever_comes_first_the_step_has_the_same_bytes(cuts, seed, tmp_path_factory):
    made = Arriving(tmp_path_factory.mktemp("ahead"))
    rng = np.random.default_rng(seed % (1 << 32))
    bounds = [0, *sorted(cuts), LAYOUT.elements]
    parts = list(pairwise(bounds))
    for step in (1, 2, 3):
        values, generation = gradient(step), step % 2
        made.shard.begin(generation, step)
        for at in rng.permutation(len(parts)):
            made.put(generation, values, *parts[at])
            made.look(step)
            assert made.replica.step == step - 1
        made.end(step, generation)
        made.assert_as(values)
    made.close()


def test_parameters_are_taken_before_the_last_bytes_are_there(arriving):
    values = gradient(1)
    arriving.shard.begin(0, 1)
    arriving.put(0, values, 0, 2101)
    before = {name: array.copy() for name, array in arriving.replica.sections().items()}
    assert arriving.look(1) == 2
    assert arriving.look(1) == 0
    for name, array in arriving.replica.sections().items():
        np.testing.assert_array_equal(array, before[name])
    arriving.put(0, values, 2101, LAYOUT.elements)
    arriving.end(1, 0)
    arriving.assert_as(values)


def test_a_step_that_is_read_is_not_taken_early(arriving):
    for step in (1, 2):
        arriving.shard.begin(step % 2, step)
        arriving.put(step % 2, gradient(step), 0, LAYOUT.elements)
        arriving.end(step, step % 2)
    with pin_step(arriving.path, 1):
        arriving.shard.begin(1, 3)
        arriving.put(1, gradient(3), 0, LAYOUT.elements)
        assert arriving.look(3) == 0
        assert arriving.replica.versions == (1, 2)
    assert arriving.look(3) == len(LAYOUT.parameters)
    assert arriving.replica.versions == (2,)


@pytest.mark.parametrize("kept, taken", [(0, 0), (1, len(LAYOUT.parameters))])
def test_an_earlier_step_that_others_may_ask_for_stays_until_the_next_is_whole(
    kept, taken, tmp_path
):
    made = Arriving(tmp_path, keep_bytes=kept * 200_000, earlier_steps=1)
    for step in (1, 2, 3):
        made.shard.begin(step % 2, step)
        made.put(step % 2, gradient(step), 0, LAYOUT.elements)
        if step == 3:
            assert made.look(step) == taken
            assert made.replica.versions[-2:] == (1, 2)
        made.end(step, step % 2)
    assert made.replica.versions[-2:] == (2, 3)
    made.close()


def test_bytes_that_are_covered_but_not_settled_are_not_read(arriving):
    arriving.shard.begin(0, 1)
    arriving.put(0, gradient(1), 0, LAYOUT.elements, settled=False)
    assert [arriving.ahead.apply_available(1, 1) for _ in range(3)] == [0, 0, 0]
    lib.fc_shard_settle(arriving.shard.handle)
    assert arriving.ahead.apply_available(1, 1) == len(LAYOUT.parameters)


def amid_the_look(monkeypatch: pytest.MonkeyPatch, what):
    """`what` happens once, just before coverage is looked at."""
    missing, left = GradientShard.missing, [what]

    def looked(shard: GradientShard, generation: int):
        if left:
            left.pop()()
        return missing(shard, generation)

    monkeypatch.setattr(GradientShard, "missing", looked)


def test_bytes_that_come_unsettled_while_coverage_is_looked_at_are_not_read(arriving, monkeypatch):
    """The span before theirs is settled meanwhile, which says nothing of them."""
    arriving.shard.begin(0, 1)

    def meanwhile():
        lib.fc_shard_settle(arriving.shard.handle)
        arriving.put(0, gradient(1), 0, LAYOUT.elements, settled=False)

    amid_the_look(monkeypatch, meanwhile)
    assert [arriving.ahead.apply_available(1, 1) for _ in range(3)] == [0, 0, 0]
    lib.fc_shard_settle(arriving.shard.handle)
    assert arriving.ahead.apply_available(1, 1) == len(LAYOUT.parameters)


def test_an_extractor_at_any_place_of_a_look_has_nothing_read_that_it_did_not_settle(
    tmp_path, monkeypatch
):
    """In every order of its stores and of the reader's loads; what it places arrives when it
    settles it, as past the caches, and not before."""
    words = (("put", 0), ("settle", None), ("put", 1), ("settle", None))
    reads = ("missing", "settled", "missing", "settled", "settled", "settled")
    for turn, places in enumerate(combinations_with_replacement(range(len(reads)), len(words))):
        (folder := tmp_path / str(turn)).mkdir()
        made = Arriving(folder)
        values, bounds = gradient(1), (0, 2101, LAYOUT.elements)
        made.shard.begin(0, 1)
        waiting: list[tuple[int, int]] = []
        at, left = [0], list(zip(places, words, strict=True))

        def extractor(made=made, waiting=waiting, at=at, left=left, values=values, bounds=bounds):
            while left and left[0][0] <= at[0]:
                _, (word, part) = left.pop(0)
                if word == "put":
                    span = bounds[part], bounds[part + 1]
                    made.put(0, np.zeros_like(values), *span, settled=False)
                    waiting.append(span)
                else:
                    for start, stop in waiting:
                        made.put(0, values, start, stop, settled=False)
                    waiting.clear()
                    lib.fc_shard_settle(made.shard.handle)
            at[0] += 1

        with monkeypatch.context() as patch:
            watch(patch, extractor)
            for _ in range(4):
                made.ahead.apply_available(1, 1)
        for start, stop in waiting:
            made.put(0, values, start, stop)
        made.put(0, values, 0, LAYOUT.elements)
        made.end(1, 0)
        made.assert_as(values)
        made.close()


def watch(monkeypatch: pytest.MonkeyPatch, before) -> None:
    """`before` runs before each of the reader's loads."""
    missing, settled = GradientShard.missing, GradientShard.settled
    assert isinstance(settled, property)

    def looked(shard: GradientShard, generation: int):
        before()
        return missing(shard, generation)

    def number(shard: GradientShard) -> int:
        before()
        return settled.fget(shard)

    monkeypatch.setattr(GradientShard, "missing", looked)
    monkeypatch.setattr(GradientShard, "settled", property(number))


def test_a_generation_that_is_opened_anew_takes_nothing_of_what_it_held_before(arriving):
    arriving.shard.begin(0, 1)
    arriving.put(0, gradient(1), 0, 7000)
    assert arriving.look(1) > 0
    arriving.shard.begin(0, 1)
    arriving.put(0, gradient(2), 0, LAYOUT.elements)
    arriving.end(1, 0)
    arriving.assert_as(gradient(2))


def test_copies_that_differ_refuse_the_step_however_much_was_taken(arriving):
    arriving.shard.begin(0, 1)
    arriving.put(0, gradient(1), 0, 7000)
    assert arriving.look(1) > 0
    arriving.put(0, gradient(1), 7000, LAYOUT.elements)
    arriving.shard.handle.header.generations[0].conflict_bytes = 4
    assert arriving.look(1) == 0
    assert not arriving.shard.finish(0)
    assert arriving.replica.step == 0
    assert arriving.replica.digest == arriving.waiting.digest


def test_a_step_that_another_past_overtakes_is_given_up(arriving):
    started = arriving.replica.begin(1, gradient(1))
    started.apply([0, 2])
    given = {n: a.copy() for n, a in arriving.replica.sections().items()}
    arriving.replica.rebase(7, given, replays=False)
    with refused_as(STEP_IS_OVER):
        started.commit()
    assert arriving.replica.step == 7


@pytest.mark.parametrize(
    "config, alone",
    [
        (OptimizerConfig(name="adamw", learning_rate=1e-3, clip_norm=1.0), True),
        (OptimizerConfig(name="adamw", learning_rate=1e-3, implementation="fused"), True),
        (ADAMW, False),
    ],
)
def test_where_one_gradient_counts_for_all_nothing_is_taken_before_the_end(config, alone, tmp_path):
    made = Arriving(tmp_path, config, alone=alone)
    made.shard.begin(0, 1)
    made.put(0, gradient(1), 0, LAYOUT.elements)
    assert made.look(1) == 0
    made.end(1, 0)
    made.assert_as(gradient(1))
    made.close()


@pytest.mark.parametrize("looked_again", [False, True])
def test_what_an_extractor_took_back_after_a_kill_is_not_kept(tmp_path, looked_again):
    """Its span was settled, and then it was killed before the commit; other bytes come."""
    size = LAYOUT.gradient_bytes
    with bench(tmp_path, gradient_bytes=size) as run:
        made = Arriving(tmp_path, shard=run.shard)
        made.shard.begin(0, 1)
        before = coverage(run.shard).copy()
        made.put(0, gradient(1), 0, 7000)
        assert made.look(1) > 0
        journalled(run, before)
        again = Extractor(run.ring, run.flows, run.staging, run.shard)
        assert run.shard.missing(0) == ((0, LAYOUT.gradient_bytes),)
        if looked_again:
            assert made.look(1) == 0
        made.put(0, gradient(2), 0, LAYOUT.elements)
        if looked_again:
            assert made.look(1) == len(LAYOUT.parameters)
        made.end(1, 0)
        made.assert_as(gradient(2))
        undone = run.shard.rollback_count
        again.close()
        Extractor(run.ring, run.flows, run.staging, run.shard).close()
        assert run.shard.rollback_count == undone, "nothing was taken back"
        made.replica.close()
        made.waiting.close()


def coverage(shard: GradientShard) -> np.ndarray:
    """[words] uint64 of generation 0, in place."""
    size = int(shard.handle.header.coverage_bytes)
    return np.frombuffer(ffi.buffer(lib.fc_shard_coverage(shard.handle, 0), size), np.uint64)


def journalled(run: Bench, before: np.ndarray) -> None:
    """The staging's journal, as a killed extractor leaves it that covered what is covered now."""
    journal, header = run.staging.handle.journal, run.staging.handle.header
    own = run.shard.handle
    at = int(ffi.cast("uintptr_t", lib.fc_shard_coverage(own, 0)))
    offset = at - int(ffi.cast("uintptr_t", own.map.base))
    changed = np.flatnonzero(coverage(run.shard) != before)
    for n, word in enumerate(changed):
        journal[n].where = 1 << 63 | offset + 8 * int(word)
        journal[n].before = int(before[word])
    header.journal_base, header.journal_used = run.ring.tail, len(changed)
