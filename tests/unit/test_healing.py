"""Tainted elements of a replica that the trainer's values replace: bit for bit what a replica has
that never lacked a byte, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.config import AverageConfig, OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import (
    PATCH_HEALS_NOTHING,
    PATCH_MISFIT,
    PATCH_NOT_FINITE,
    PATCH_REFUTED,
    PATCH_STEP_GONE,
    PATCH_STEPS_GONE,
)
from flowcheck.optimizer_rules.torch_optimizers import RULES
from flowcheck.plane.shared_memory.merged_ranges import merged
from flowcheck.replica import tainted_steps
from flowcheck.replica.element_patch import ElementPatch, patch_of_sections
from flowcheck.replica.element_ranges import (
    Ranges,
    cut_at,
    difference,
    intersection,
    union,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.replica.taint import TaintLog

SHAPES = ((7, 3), (), (0,), (5,), (41, 60), (2, 3, 4), (0,))
COUNT = 21 + 1 + 5 + 2460 + 24
LACKING = {
    3: ((8, 13), (84, 88), (108, 3000)),
    5: ((100, 101), (4000, 4100), (9940, 9944)),
    8: ((4092, 4200),),
}
"""{step: byte ranges that did not come}"""
STEPS = 9


def flat(ranges: Ranges) -> set[int]:
    return {n for start, stop in ranges.tolist() for n in range(start, stop)}


drawn_ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda at: (at[0], at[0] + at[1])),
    max_size=6,
).map(lambda found: merged(np.array(sorted(found), np.int64).reshape(-1, 2)))


@settings(deadline=None)
@given(drawn_ranges, drawn_ranges, st.lists(st.integers(0, 70), max_size=6))
def test_sets_of_elements(one: Ranges, other: Ranges, borders: list[int]) -> None:
    assert flat(intersection(one, other)) == flat(one) & flat(other)
    assert flat(difference(one, other)) == flat(one) - flat(other)
    assert flat(union([one, other])) == flat(one) | flat(other)
    at = np.array(sorted([0, *borders]), np.int64)
    pieces, owners = cut_at(one, at)
    assert flat(pieces) == flat(one)
    for (start, stop), owner in zip(pieces.tolist(), owners.tolist(), strict=True):
        assert at[owner] <= start and (owner + 1 == len(at) or stop <= at[owner + 1])


def of_rule(name: str, **more: object) -> OptimizerConfig:
    return OptimizerConfig(name=name, learning_rate=0.05, **more)  # type: ignore[arg-type]


CONFIGS = {
    **{rule.name: of_rule(rule.name) for rule in RULES if rule.per_element},
    "nesterov": of_rule("sgd", momentum=0.9, nesterov=True, weight_decay=0.1),
    "amsgrad": of_rule("adamw", amsgrad=True),
    "foreach on a GPU": of_rule("adam", device="cuda", weight_decay=0.1),
    "fused on a GPU": of_rule("adam", device="cuda", implementation="fused", weight_decay=0.1),
    "fused on a GPU before": of_rule(
        "adamw", device="cuda", implementation="fused", weight_decay=0.1, torch="2.8.0"
    ),
    "average": of_rule("sgd", average=AverageConfig(decay=0.9)),
}
BY_TORCH = {"adagrad", "adadelta", "adamax", "nadam", "radam", "rmsprop", "average"}
"""Steps that torch makes: no single elements of them can be made again."""


def pair(config: OptimizerConfig, folder: Path, keep: int = 12) -> tuple[Replica, Replica]:
    layout = Layout.of_shapes(SHAPES)
    weights = np.linspace(-1, 1, layout.elements, dtype=np.float32)
    short, whole = (
        Replica.create(folder / name, layout, config, weights, keep_bytes=keep << 16)
        for name in ("short", "whole")
    )
    return short, whole


def step_both(short: Replica, whole: Replica, step: int) -> None:
    gradient = np.random.default_rng(step).standard_normal(COUNT).astype(np.float32)
    missing = LACKING.get(step, ())
    raw = gradient.copy().view(np.uint8)
    for start, stop in missing:
        raw[start - start % 4 : stop + -stop % 4] = 0
    short.apply(step, raw, missing=missing)
    whole.apply(step, gradient)


def state_of(replica: Replica) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in replica.sections().items()}


def marked(replica: Replica) -> set[int]:
    starts = {p.name: p.start for p in replica.layout.parameters}
    return {
        starts[name] + n
        for name, own in replica.tainted.items()
        for one in own
        for n in range(one.start, one.stop)
    }


def all_of(replica: Replica, state: dict[str, np.ndarray], elements: Ranges) -> ElementPatch:
    return patch_of_sections(replica.description, state, elements)


def check_alike(short: Replica, whole: Replica) -> None:
    """Everything but what is tainted is what a replica has that lacked nothing."""
    apart = ~np.isin(np.arange(COUNT), sorted(marked(short)))
    other = whole.sections()
    for name, own in short.sections().items():
        alike = own.view(np.uint8).reshape(own.size, -1) == other[name].view(np.uint8).reshape(
            own.size, -1
        )
        kept = apart if own.size == COUNT else np.ones(own.size, np.bool_)
        assert alike.all(axis=1)[kept].all(), name
    assert short.commit.tainted == bool(marked(short))


def lacked(step: int) -> set[int]:
    return {n for start, stop in LACKING.get(step, ()) for n in range(start // 4, -(-stop // 4))}


@pytest.mark.parametrize("name", CONFIGS)
def test_values_of_any_step_since_heal_what_was_lost_before(name: str, tmp_path: Path) -> None:
    short, whole = pair(CONFIGS[name], tmp_path)
    states = {}
    for step in range(1, STEPS + 1):
        step_both(short, whole, step)
        states[step] = state_of(whole)
    before = marked(short)
    assert before == lacked(3) | lacked(5) | lacked(8)
    everything = np.array([[0, COUNT]])
    with refused_as(PATCH_HEALS_NOTHING):
        short.heal(2, all_of(short, states[2], everything))
    for step, healed in ((4, lacked(3) - lacked(5) - lacked(8)), (6, lacked(5) - lacked(8))):
        patch = all_of(short, states[step], everything)
        if name in BY_TORCH:
            with refused_as(PATCH_STEPS_GONE):
                short.heal(step, patch)
            continue
        digest = short.digest
        assert flat(short.heal(step, patch)) == healed
        assert short.digest != digest and short.step == STEPS
        before -= healed
        assert marked(short) == before
        check_alike(short, whole)
    short.heal(STEPS, all_of(short, states[STEPS], everything))
    assert marked(short) == set() and short.digest == whole.digest
    reopened = again(short, CONFIGS[name])
    step_both(reopened, whole, STEPS + 1)
    assert (marked(reopened), reopened.digest) == (set(), whole.digest)
    check_alike(reopened, whole)


def again(replica: Replica, config: OptimizerConfig) -> Replica:
    """As after a kill."""
    path = replica.path
    replica.close()
    return Replica.open(path, config)


def test_only_tainted_elements_are_taken_and_others_are_evidence(tmp_path: Path) -> None:
    config = CONFIGS["adamw"]
    short, whole = pair(config, tmp_path)
    for step in range(1, 5):
        step_both(short, whole, step)
    state, everything = state_of(whole), np.array([[0, COUNT]])
    own = {n: array.copy() for n, array in short.sections().items()}
    wrong = {n: array.copy() for n, array in state.items()}
    wrong["exp_avg"][20] += 1  # nobody lost anything of it
    with refused_as(PATCH_REFUTED):
        short.heal(4, all_of(short, wrong, everything))
    for broken in (
        ElementPatch(everything, {"parameters": state["parameters"].view(np.uint8)}),
        ElementPatch(np.array([[0, COUNT + 1]]), all_of(short, state, everything).parts),
        ElementPatch(np.array([[4, 2]]), {}),
        all_of(short, state, np.zeros((0, 2), np.int64)),
    ):
        with refused_as(PATCH_MISFIT):
            short.heal(4, broken)
    with refused_as(PATCH_MISFIT):
        short.heal(5, all_of(short, state, everything))
    assert all(np.array_equal(array, own[n]) for n, array in short.sections().items())
    some = np.array([[2, 3], [21, 22]])
    assert flat(short.heal(4, all_of(short, state, some))) == flat(some)
    assert marked(short) == lacked(3) - flat(some)
    assert short.commit.tainted
    check_alike(short, whole)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("section", ["parameters", "exp_avg_sq"])
def test_values_that_are_no_numbers_heal_nothing(
    section: str, value: float, tmp_path: Path
) -> None:
    short, whole = pair(of_rule("adamw"), tmp_path)
    for step in range(1, STEPS + 1):
        step_both(short, whole, step)
    elements, before = short._taint.elements_at(STEPS), state_of(short)
    state = state_of(whole)
    state[section].view(np.float32)[elements[-1, 1] - 1] = value
    with refused_as(PATCH_NOT_FINITE, section=section):
        short.heal(STEPS, all_of(short, state, elements))
    assert all(np.array_equal(part, before[name]) for name, part in state_of(short).items())
    short.heal(STEPS, all_of(short, state_of(whole), elements))
    check_alike(short, whole)


def test_values_of_a_step_that_is_gone_need_another_proof(tmp_path: Path) -> None:
    short, whole = pair(CONFIGS["adamw"], tmp_path, keep=0)
    states = {}
    for step in range(1, 8):
        step_both(short, whole, step)
        states[step] = state_of(whole)
    assert min(short.versions) > 4
    with refused_as(PATCH_STEP_GONE):
        short.heal(4, all_of(short, states[4], np.array([[0, COUNT]])))
    tainted = np.array(sorted(lacked(3)), np.int64)
    alone = merged(np.stack((tainted, tainted + 1), axis=1))
    short.heal(4, all_of(short, states[4], alone))
    assert marked(short) == lacked(5)
    check_alike(short, whole)


def test_a_state_healed_later_stays_tainted_before_and_when_it_goes_back(tmp_path: Path) -> None:
    config = CONFIGS["adamw"]
    short, whole = pair(config, tmp_path)
    states = {}
    for step in range(1, 7):
        step_both(short, whole, step)
        states[step] = state_of(whole)
    short.heal(6, all_of(short, states[6], np.array([[0, COUNT]])))
    assert not marked(short)
    assert [commit.step for commit in short._open.versions] == sorted(set(short.versions))
    short.go_back(4)
    assert marked(short) == lacked(3)
    short = again(short, config)
    assert marked(short) == lacked(3)


@pytest.mark.parametrize("until", ["publish_again", "heal_elements"])
def test_a_kill_amid_healing_leaves_more_taint_never_less(
    until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIGS["adamw"]
    short, whole = pair(config, tmp_path)
    for step in range(1, 5):
        step_both(short, whole, step)
    patch = all_of(short, state_of(whole), np.array([[0, COUNT]]))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as amid, pytest.raises(KeyboardInterrupt):
        amid.setattr(StateFile if until == "publish_again" else TaintLog, until, killed)
        short.heal(4, patch)
    short = again(short, config)
    assert marked(short) == lacked(3)
    check_kept = difference(np.array([[0, COUNT]]), short._taint.elements_at(4))
    mine, right = (patch_of_sections(short.description, s, check_kept) for s in
                   (short.sections(), whole.sections()))  # fmt: skip
    assert all(np.array_equal(mine.parts[name], right.parts[name]) for name in mine.parts)
    short.heal(4, patch)
    assert (marked(short), short.digest) == (set(), whole.digest)


@pytest.mark.parametrize("torn", [1, 8, 30, 200])
def test_a_torn_record_heals_nothing_and_harms_nothing(torn: int, tmp_path: Path) -> None:
    config = CONFIGS["adamw"]
    short, whole = pair(config, tmp_path)
    states = {}
    for step in range(1, 5):
        step_both(short, whole, step)
        states[step] = state_of(whole)
    file = tmp_path / f"short{tainted_steps.SUFFIX}"
    raw = file.read_bytes()
    file.write_bytes(raw[:-torn])
    short = again(short, config)
    everything = np.array([[0, COUNT]])
    with refused_as(PATCH_STEPS_GONE):
        short.heal(3, all_of(short, states[3], everything))
    step_both(short, whole, 5)
    with refused_as(PATCH_STEPS_GONE):
        short.heal(3, all_of(short, states[3], everything))
    short.heal(5, all_of(short, state_of(whole), everything))
    assert short.digest == whole.digest
    assert not file.exists()


def test_the_record_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tainted_steps, "BYTES_MAX", 20_000)
    config = CONFIGS["sgd"]
    short, whole = pair(config, tmp_path)
    states = {}
    for step in range(1, 30):
        step_both(short, whole, step)
        states[step] = state_of(whole)
        file = tmp_path / f"short{tainted_steps.SUFFIX}"
        assert not file.exists() or file.stat().st_size <= 20_000
    tainted = np.array(sorted(lacked(3) | lacked(5) | lacked(8)), np.int64)
    alone = merged(np.stack((tainted, tainted + 1), axis=1))
    with pytest.raises(StateError):
        short.heal(9, all_of(short, states[9], alone))
    short.heal(27, all_of(short, states[27], alone))
    assert short.digest == whole.digest
