"""A replica's step as torch's own objects: an optimizer that loads it goes on as the trainer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout

ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-2)
STEPS, BEFORE = 6, 3


def test_torch_goes_on_from_a_given_step_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    torch.manual_seed(1)
    shapes = [(4, 3), (4,), (2, 4)]
    values = [torch.randn(shape) for shape in shapes]
    gradients = [[torch.randn(shape) for shape in shapes] for _ in range(STEPS)]
    trained = [torch.nn.Parameter(value.clone()) for value in values]
    trainer = torch.optim.AdamW(trained, lr=1e-2, foreach=False)

    layout = Layout.of_shapes(shapes, names=["a", "b", "c"])
    flat = torch.cat([v.reshape(-1) for v in values]).numpy()
    replica = Replica.create(tmp_path / "replica", layout, ADAMW, flat)
    for number, own in enumerate(gradients, 1):
        for parameter, gradient in zip(trained, own, strict=True):
            parameter.grad = gradient.clone()
        trainer.step()
        if number <= BEFORE:
            replica.apply(number, torch.cat([g.reshape(-1) for g in own]).numpy())
    replica.close()

    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "replica", ADAMW))
    assert (found.step, list(found.model)) == (BEFORE, ["a", "b", "c"])
    resumed = [torch.nn.Parameter(value.clone()) for value in found.model.values()]
    optimizer = torch.optim.AdamW(resumed, lr=1e-2, foreach=False)
    assert found.optimizer is not None
    optimizer.load_state_dict(found.optimizer)
    for own in gradients[BEFORE:]:
        for parameter, gradient in zip(resumed, own, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(resumed, trained, strict=True))


@pytest.mark.parametrize(
    ("implementation", "own"),
    [
        (None, {}),
        ("loop", {"foreach": False}),
        ("foreach", {"foreach": True}),
        ("fused", {"fused": True}),
    ],
)
def test_groups_are_those_of_a_script_that_says_no_more_of_its_kernels_than_is_stated(
    implementation: Any, own: dict[str, bool], tmp_path: Path
) -> None:
    layout = Layout.of_shapes([(4, 3)], names=["a"])
    config = msgspec.structs.replace(ADAMW, implementation=implementation)
    flat = np.ones(12, np.float32)
    replica = Replica.create(tmp_path / "replica", layout, config, flat)
    replica.apply(1, flat)
    replica.close()
    trained = torch.nn.Parameter(torch.ones(4, 3))
    trainer = torch.optim.AdamW([trained], lr=1e-2, **own)
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "replica", config))
    assert found.optimizer is not None
    assert found.optimizer["param_groups"] == trainer.state_dict()["param_groups"]
