"""What a replica keeps of bytes that never came, and which elements of its steps they cost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.config import AverageConfig, OptimizerConfig
from flowcheck.findings.catalog.replica_state_errors import TAINT_UNREADABLE
from flowcheck.optimizer_rules.torch_optimizers import RULES
from flowcheck.plane.shared_memory.merged_ranges import merged
from flowcheck.replica import taint
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import Loss, TaintLog, bounded, missing_elements
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template

SHAPES = ((7, 3), (), (5,), (0,), (2, 3, 4))
STEPS = 6
LACKING = {3: ((8, 13), (84, 88)), 4: ((100, 101),)}
"""{step: byte ranges that did not come}: elements 2 and 3 of the first parameter, the scalar, and
one element of the third."""


def flat_range(ranges: np.ndarray) -> set[int]:
    return {n for start, stop in ranges.tolist() for n in range(start, stop)}


byte_ranges = st.lists(
    st.tuples(st.integers(0, 260), st.integers(1, 40)).map(lambda at: (at[0], at[0] + at[1])),
    max_size=6,
)


@given(byte_ranges, st.sampled_from(["float32", "float64", "bfloat16"]))
def test_elements_that_byte_ranges_touch(found: list[tuple[int, int]], dtype: str) -> None:
    layout = Layout.of_shapes(SHAPES, dtype=dtype)
    size = {"float32": 4, "float64": 8, "bfloat16": 2}[dtype]
    count = sum(p.elements for p in layout.parameters)
    own = flat_range(missing_elements(layout, sorted(found)))
    touched = {at // size for start, stop in found for at in range(start, stop)}
    assert own == {element for element in touched if element < count}


def test_elements_where_parameters_have_several_types() -> None:
    shapes = [((3,), (1,)), ((4,), (1,)), ((2,), (1,))]
    layout = Layout.of(shapes, dtype=["bfloat16", "float32", "float64"])
    # Bytes of a gradient in registration order: 6, 16, 16.
    assert missing_elements(layout, [(5, 7)]).tolist() == [[2, 4]]
    assert missing_elements(layout, [(21, 22), (30, 38)]).tolist() == [[6, 7], [8, 9]]


@given(byte_ranges, st.integers(1, 30))
def test_merged_ranges_hold_all_and_do_not_touch(found: list[tuple[int, int]], apart: int) -> None:
    given_ranges = np.array(sorted(found), np.int64).reshape(-1, 2)
    own = merged(given_ranges, apart)
    assert flat_range(own) >= flat_range(given_ranges)
    assert (own[1:, 0] - own[:-1, 1] >= apart).all()
    if apart == 1:
        assert flat_range(own) == flat_range(given_ranges)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), byte_ranges), max_size=8), st.integers(2, 9))
def test_fewer_ranges_never_taint_less(
    found: list[tuple[int, list[tuple[int, int]]]], most: int
) -> None:
    losses = [
        Loss.of(step, merged(np.array(sorted(own), np.int64).reshape(-1, 2)))
        for step, own in found
        if own
    ]
    small = bounded(losses, most)
    assert sum(len(loss.ranges) for loss in small) <= max(most, 1)
    for step in range(11):
        before = {n for loss in losses if loss.is_in(step) for n in flat_range(loss.ranges)}
        after = {n for loss in small if loss.is_in(step) for n in flat_range(loss.ranges)}
        assert after >= before
        again = {n for loss in losses if loss.first == step for n in flat_range(loss.ranges)}
        held = [one for one in small if one.first <= step <= one.last]
        assert {n for loss in held for n in flat_range(loss.ranges)} >= again


def gradients(layout: Layout) -> list[np.ndarray]:
    drawn = np.random.default_rng(3)
    count = sum(p.elements for p in layout.parameters)
    return [drawn.standard_normal(count).astype(np.float32) for _ in range(STEPS)]


def lacking(gradient: np.ndarray, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    raw = gradient.copy().view(np.uint8)
    for start, stop in ranges:
        raw[start - start % 4 : stop + -stop % 4] = 0
    return raw


def of_rule(name: str, **more: object) -> OptimizerConfig:
    return OptimizerConfig(name=name, learning_rate=0.05, **more)  # type: ignore[arg-type]


CONFIGS = [
    *(of_rule(rule.name) for rule in RULES if rule.per_element),
    of_rule("sgd", momentum=0.9, nesterov=True),
    of_rule("adamw", amsgrad=True, implementation="fused"),
    of_rule("adam", implementation="foreach", weight_decay=0.1, clip_value=0.5),
    of_rule("sgd", average=AverageConfig(decay=0.9)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda one: one.name)
def test_a_byte_that_never_came_costs_its_elements_alone(
    config: OptimizerConfig, tmp_path: Path
) -> None:
    """Beside a replica that lacked nothing, whose steps are torch's own (test_every_rule)."""
    assert config.per_element
    layout = Layout.of_shapes(SHAPES)
    weights = np.linspace(-1, 1, layout.elements, dtype=np.float32)
    short, whole = (
        Replica.create(tmp_path / name, layout, config, weights) for name in ("short", "whole")
    )
    for step, gradient in enumerate(gradients(layout), 1):
        missing = LACKING.get(step, ())
        short.apply(step, lacking(gradient, missing), missing=missing)
        whole.apply(step, gradient)
        expected = {n for s, own in LACKING.items() if s <= step for n in elements(own)}
        assert marked(short, layout) == expected
    apart = ~np.isin(np.arange(layout.elements), sorted(marked(short, layout)))
    other = whole.sections()
    for name, own in short.sections().items():
        alike = own.view(np.uint8).reshape(own.size, -1) == other[name].view(np.uint8).reshape(
            own.size, -1
        )
        same = alike.all(axis=1)
        assert same[apart].all() if own.size == layout.elements else same.all(), name
    assert not np.array_equal(short.parameters(), whole.parameters())
    short.close()
    whole.close()


def elements(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {at // 4 for start, stop in ranges for at in range(start, stop)}


def marked(replica: Replica, layout: Layout) -> set[int]:
    starts = {p.name: p.start for p in layout.parameters}
    return {
        starts[name] + at
        for name, own in replica.tainted.items()
        for one in own
        for at in range(one.start, one.stop)
    }


WHOLE = [
    of_rule("sgd", clip_norm=1.0),
    of_rule("adafactor"),
    OptimizerConfig(factory="train.py:make"),
    of_rule("sgd", clip_norm=1.0, clip_together=True),
    of_rule("muon"),
]


@pytest.mark.parametrize("config", WHOLE, ids=lambda one: one.name or "factory")
def test_rules_over_more_than_an_element_keep_none_apart(config: OptimizerConfig) -> None:
    assert not config.per_element


def made(folder: Path, **more: int) -> tuple[Replica, Layout, list[np.ndarray]]:
    layout = Layout.of_shapes(SHAPES)
    weights = np.linspace(-1, 1, layout.elements, dtype=np.float32)
    replica = Replica.create(folder / "state", layout, of_rule("adamw"), weights, **more)  # type: ignore[arg-type]
    return replica, layout, gradients(layout)


def test_taint_is_known_to_readers_of_each_version_and_in_checkpoints(tmp_path: Path) -> None:
    replica, _, all_steps = made(tmp_path, keep_bytes=1 << 20)
    for step, gradient in enumerate(all_steps, 1):
        missing = LACKING.get(step, ())
        replica.apply(step, lacking(gradient, missing), missing=missing)
    for step in range(STEPS + 1):
        taken = step_snapshot.copy_snapshot(replica.path, replica.optimizer, step)
        since = {one.since for own in taken.tainted.values() for one in own}
        assert since == {s for s in LACKING if s <= step}
        with step_snapshot.hold_snapshot(replica.path, replica.optimizer, step) as held:
            assert held.tainted == taken.tainted
    folder = checkpoint_save.save(replica, tmp_path / "out")
    assert folder.name == "step-6" and (tmp_path / "out/latest").read_text() == "step-2\n"
    assert checkpoint_save.snapshot_of(folder).tainted == replica.tainted
    exact = checkpoint_save.snapshot_of(tmp_path / "out/step-2")
    assert exact.tainted == {}
    kept = step_snapshot.copy_snapshot(replica.path, replica.optimizer, 2)
    assert exact.digest == kept.digest
    replica.close()


def test_a_given_state_heals_and_steps_made_again_lack_what_they_lacked(tmp_path: Path) -> None:
    replica, layout, all_steps = made(tmp_path)
    (tmp_path / "beside").mkdir()
    right, _, _ = made(tmp_path / "beside")
    states = {}
    for step, gradient in enumerate(all_steps, 1):
        missing = LACKING.get(step, ())
        replica.apply(step, lacking(gradient, missing), missing=missing)
        right.apply(step, gradient)
        states[step] = {name: own.copy() for name, own in right.sections().items()}
    replica.rebase(3, states[3], replays=True)
    assert replica.tainted == {}
    for step in (4, 5, 6):
        lacked = replica.lacked(step)
        raw = lacking(all_steps[step - 1], LACKING.get(step, ()))
        replica.begin(step, raw, missing=lacked).commit()
    assert marked(replica, layout) == elements(LACKING[4])
    log = TaintLog(replica.path)
    assert log.at(3, layout) == {} == taint.taint_of_losses(log.losses, 2, layout)
    replica.rebase(6, states[6], replays=False)
    assert replica.tainted == {} and replica.digest == right.digest
    replica.close()
    right.close()


def test_going_back_forgets_what_later_steps_lacked(tmp_path: Path) -> None:
    replica, layout, all_steps = made(tmp_path, keep_bytes=1 << 20)
    for step, gradient in enumerate(all_steps, 1):
        missing = LACKING.get(step, ())
        replica.apply(step, lacking(gradient, missing), missing=missing)
    replica.go_back(3)
    assert marked(replica, layout) == elements(LACKING[3])
    replica.go_back(2)
    replica.apply(3, all_steps[2])
    assert replica.tainted == {}
    replica.close()


@pytest.mark.parametrize("damage", ["gone", "cut", "crossed", "other"])
def test_a_tainted_step_is_never_taken_for_exact_where_the_file_is_damaged(
    damage: str, tmp_path: Path
) -> None:
    replica, _, all_steps = made(tmp_path)
    replica.apply(1, lacking(all_steps[0], LACKING[3]), missing=LACKING[3])
    file = tmp_path / "state.taint"
    crossed = np.array([[5, 9], [7, 12]], np.int64)
    text = {
        "gone": None,
        "cut": file.read_bytes()[:-3],
        "crossed": msgspec.msgpack.encode([Loss.of(1, crossed)]),
        "other": msgspec.msgpack.encode([Loss.of(2, crossed[:1])]),
    }[damage]
    file.unlink()
    if text is not None:
        file.write_bytes(text)
    with refused_as(TAINT_UNREADABLE):
        step_snapshot.copy_snapshot(replica.path, replica.optimizer)
    replica.close()


def test_a_step_that_was_not_committed_taints_nothing(tmp_path: Path) -> None:
    replica, layout, all_steps = made(tmp_path)
    replica.apply(1, all_steps[0])
    TaintLog(replica.path).record(2, missing_elements(layout, LACKING[3]))  # then it was killed
    assert step_snapshot.copy_snapshot(replica.path, replica.optimizer).tainted == {}
    digest = replica.digest
    replica.close()
    replica = Replica.open(tmp_path / "state", of_rule("adamw"))
    assert replica.digest == digest and replica.tainted == {}
    replica.apply(2, all_steps[1])
    assert replica.tainted == {}
    replica.close()


def test_an_audit_compares_all_but_what_is_tainted(tmp_path: Path) -> None:
    """The replica counts elements as they lie in memory, files have them in index order."""
    torch.manual_seed(2)
    net = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.05)
    config = OptimizerConfig(name="adamw", learning_rate=0.05)
    layout = Layout.of([(p.shape, p.stride()) for p in parameters])
    replica = Replica.create(tmp_path / "state", layout, config, in_memory(parameters))
    for step in (1, 2):
        net(torch.randn(2, 3, 4, 4)).square().mean().backward()
        gradient = in_memory([p.grad for p in parameters])
        missing = ((40, 48),) if step == 2 else ()
        replica.apply(step, lacking(gradient, missing), missing=missing)
        optimizer.step()
        optimizer.zero_grad()
    state = {"net": net.state_dict(), "opt": optimizer.state_dict(), "step": 2}
    audit = audited(state, replica, tmp_path)
    # Two elements of the parameter and of both its averages.
    assert (audit.differences, audit.tainted_elements) == ((), 6)
    flat = torch.as_strided(net.weight.detach(), (net.weight.numel(),), (1,))
    flat[10] += 1  # tainted, whatever it is
    assert audited(state, replica, tmp_path).passed
    flat[12] += 1
    [difference] = audited(state, replica, tmp_path).differences
    assert (difference.name, difference.elements) == ("weight", 1)
    replica.close()


def in_memory(tensors: list[torch.Tensor | None]) -> np.ndarray:
    own = [t.detach() for t in tensors if t is not None]
    return torch.cat([torch.as_strided(t, (t.numel(),), (1,)) for t in own]).numpy()


def audited(state: dict[str, object], replica: Replica, folder: Path) -> bitwise_audit.Audit:
    torch.save(state, folder / "trainer.pt")
    template = load_template(folder / "trainer.pt", replica.layout)
    taken = step_snapshot.copy_snapshot(replica.path, replica.optimizer)
    by_digests = bitwise_audit.audit_digests(
        template, replica.layout, replica.optimizer, replica.tensor_digests, taken.tainted
    )
    tensor = replica.layout.parameters[0].elements
    assert by_digests.passed and by_digests.tainted_elements == 3 * tensor
    return bitwise_audit.audit_snapshot(template, taken)
