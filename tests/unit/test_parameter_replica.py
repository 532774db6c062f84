"""A replica of parameters alone: what it is made of, and what it never claims to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.refused_as import refused_as

from flowcheck._core import lib
from flowcheck.config.optimizer_config import OptimizerConfig
from flowcheck.findings.catalog.restored_state import EARLIER_OPTIMIZER_STATE, ROUNDED
from flowcheck.findings.catalog.unloadable_checkpoints import NO_OPTIMIZER_STATE
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.sharding.gather_units import flat_units
from flowcheck.stages.job_state.gathered_parameters import gathered_parameters
from flowcheck.stages.replica_update.gradient_sources.shard_source import ShardSource
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

NONE = OptimizerConfig(name="none", learning_rate=0.0)
SHAPES = {"a.weight": (3, 4), "a.bias": (5,), "b.weight": (2, 2)}


def drawn(step: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(step)
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


def flat(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> np.ndarray:
    joined = torch.cat([t.reshape(-1) for t in tensors.values()]).to(dtype)
    return joined.view(torch.uint8).numpy()


def replica_of(folder: Path, dtype: str = "float32") -> Replica:
    layout = Layout.of_shapes(SHAPES.values(), names=list(SHAPES), dtype=dtype)
    weights = flat(drawn(0), getattr(torch, dtype)).view(layout.numpy_dtype)
    return Replica.create(folder / "replica", layout, NONE, weights, may_skip_parameters=True)


def trainer_file(folder: Path, step: int) -> Path:
    """What a trainer that shards wrote: whole parameters and optimizer state."""
    model = {name: torch.nn.Parameter(value) for name, value in drawn(step).items()}
    optimizer = torch.optim.AdamW(model.values())
    for _ in range(step):
        for p in model.values():
            p.grad = torch.ones_like(p)
        optimizer.step()
    values = {name: value.clone() for name, value in drawn(step).items()}
    tree = {"model": values, "optimizer": optimizer.state_dict(), "step": step}
    path = folder / f"trainer-{step}.pt"
    torch.save(tree, path)
    return path


def template_of(path: Path, replica: Replica) -> CheckpointTemplate:
    return load_template(path, replica.layout, list(SHAPES))


def test_a_step_is_what_was_sent_and_says_what_did_not_come(tmp_path: Path) -> None:
    replica = replica_of(tmp_path)
    replica.apply(1, flat(drawn(1), torch.float32))
    replica.apply(2, flat(drawn(2), torch.float32), np.array([True, False, True]))
    path = checkpoint_save.save(replica, tmp_path / "out")
    replica.close()
    saved = checkpoint_save.load(path)
    assert saved.manifest.kind == "parameters"
    assert saved.manifest.older == {"a.bias": 1}
    for name, of in (("a.weight", 2), ("a.bias", 1), ("b.weight", 2)):
        assert torch.equal(saved.parameters[name], drawn(of)[name])
    with refused_as(NO_OPTIMIZER_STATE):
        saved.optimizer_state_dict()
    taken = checkpoint_save.snapshot_of(path)
    assert taken.parameters_only and taken.older == {"a.bias": 1}


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    replica = replica_of(tmp_path)
    replica.apply(1, flat(drawn(1), torch.float32), np.array([False, True, True]))
    digest = replica.digest
    replica.close()
    again = Replica.open(tmp_path / "replica", NONE)
    assert (again.step, again.digest) == (1, digest)
    again.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_audit_holds_it_against_what_the_trainer_wrote_in_the_type_that_is_sent(
    tmp_path: Path, dtype: str
) -> None:
    replica = replica_of(tmp_path, dtype)
    replica.apply(1, flat(drawn(1), getattr(torch, dtype)))
    replica.apply(2, flat(drawn(2), getattr(torch, dtype)), np.array([True, True, False]))
    held = step_snapshot.copy_snapshot(tmp_path / "replica", NONE, 1)
    found = bitwise_audit.audit_snapshot(template_of(trainer_file(tmp_path, 1), replica), held)
    assert found.passed and found.parameters_only and found.tensors == 3
    held = step_snapshot.copy_snapshot(tmp_path / "replica", NONE, 2)
    found = bitwise_audit.audit_snapshot(template_of(trainer_file(tmp_path, 2), replica), held)
    assert [difference.name for difference in found.differences] == ["b.weight"]
    by_digest = bitwise_audit.audit_digests(
        template_of(trainer_file(tmp_path, 2), replica),
        replica.layout,
        NONE,
        replica.tensor_digests,
    )
    assert [difference.name for difference in by_digest.differences] == ["b.weight"]
    replica.close()


def test_a_restore_is_no_full_resume_and_says_how_old_everything_is(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, "bfloat16")
    for step in (1, 2, 3):
        replica.apply(step, flat(drawn(step), torch.bfloat16))
    template = template_of(trainer_file(tmp_path, 1), replica)
    before: dict[str, Any] = {
        name: value.clone() for name, value in template.optimizer["state"][0].items()
    }
    taken = step_snapshot.copy_snapshot(tmp_path / "replica", NONE)
    filled = template_fill.fill_template(template, taken, lambda _: 0.0)
    replica.close()
    assert EARLIER_OPTIMIZER_STATE(step=3, optimizer_step=1) in filled.resume_caveats
    assert ROUNDED(3) in filled.resume_caveats
    assert template.tree["step"] == 1
    for name, value in template.tree["model"].items():
        assert torch.equal(value, drawn(3)[name].bfloat16().float())
    after = template.optimizer["state"][0]
    assert all(torch.equal(before[name], after[name]) for name in before)


def shard_of(folder: Path, missing: tuple[int, int] | None, conflict: int) -> GradientShard:
    """A shard whose first step was gathered but for a range, and is given up."""
    shard = GradientShard.create(folder / "shard", gradient_bytes=64, unit_bytes=4)
    shard.begin(0, 1)
    shard.gradient(0)[:] = np.arange(64, dtype=np.uint8)
    header = shard.handle.header.generations[0]
    header.conflict_bytes = conflict
    lacks = [] if missing is None else [missing]
    shard.missing = lambda _: tuple(lacks)  # type: ignore[method-assign]
    lib.fc_shard_make_partial(shard.handle, 0)
    return shard


@pytest.mark.parametrize(
    ("missing", "conflict", "came"),
    [(None, 0, [True, True]), ((36, 40), 0, [True, False]), (None, 4, [False, False])],
)
def test_what_lacks_something_or_came_in_two_ways_is_not_taken(
    tmp_path: Path, missing: tuple[int, int] | None, conflict: int, came: list[bool]
) -> None:
    shard = shard_of(tmp_path, missing, conflict)
    source = ShardSource(shard)
    arrived = source.arrived(source.next_iteration)
    assert arrived is not None and arrived.certain()
    units = flat_units([32, 32], 2, "float32")
    values, used = gathered_parameters(units, arrived.data, arrived.unbelieved)
    assert values.tobytes() == bytes(range(64)) and used.tolist() == came
    assert not source.ended
    shard.mark_lost(0)
    assert source.ended and source.arrived(source.next_iteration) is None
    shard.close()
