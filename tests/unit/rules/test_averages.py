"""Averages of weights and clips, against scripts of plain torch that do them by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.scripted import Mixed, Script, flat, replica_of, same
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from flowcheck.config import OptimizerConfig
from flowcheck.config.optimizer_config import AverageConfig
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica

STEPS = 200


def adamw(how: str = "loop") -> Callable[[nn.Module], torch.optim.Optimizer]:
    flags = {"foreach": how == "foreach", "fused": how == "fused"}
    return lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, **flags)


@pytest.mark.parametrize(("decay", "foreach"), [(0.9, False), (None, False), (None, True)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.nightly)]
)
def test_averages_are_those_of_torchs_own_averaged_model(
    decay: float | None, foreach: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    script = Script(adamw(), dtype=dtype)
    function = None if decay is None else get_ema_multi_avg_fn(decay)
    function = get_swa_multi_avg_fn() if foreach else function
    averaged = AveragedModel(script.net, multi_avg_fn=function)
    average = AverageConfig(decay=decay, every=3, start=5, foreach=foreach)
    config = OptimizerConfig(name="adamw", learning_rate=0.01, average=average)
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        script.step()
        if step >= 5 and (step - 5) % 3 == 0:
            averaged.update_parameters(script.net)
        if step % 20 == 1:
            assert replica.sections()["average"].tobytes() == flat(averaged.module.parameters())
        if step == 100:
            replica.close()
            replica = Replica.open(tmp_path / "state", config)
    replica.close()
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
    assert found.averages is not None and found.average_updates == int(averaged.n_averaged)
    again = AveragedModel(Mixed().to(dtype))
    again.module.load_state_dict(found.averages, strict=False)
    assert flat(again.module.parameters()) == flat(averaged.module.parameters())


@pytest.mark.parametrize(
    ("keys", "calls"),
    [
        ({"clip_norm": 2.0, "clip_norm_type": torch.inf}, ["norm"]),
        ({"clip_norm": 2.0, "clip_norm_type": 1.0}, ["norm"]),
        ({"clip_norm": 2.0, "clip_value": 0.5}, ["norm", "value"]),
        ({"clip_norm": 2.0, "clip_value": 0.5, "clip_value_first": True}, ["value", "norm"]),
    ],
)
def test_clips_are_in_the_scripts_order(
    keys: dict[str, float], calls: list[str], tmp_path: Path
) -> None:
    script = Script(adamw("foreach"))
    config = OptimizerConfig(
        name="adamw",
        implementation="foreach",
        learning_rate=0.01,
        **keys,  # type: ignore[arg-type]
    )
    replica = replica_of(script, config, tmp_path / "state")
    kind = keys.get("clip_norm_type", 2.0)
    for step in range(1, 30):
        replica.apply(step, script.backward())
        for call in calls:
            if call == "norm":
                nn.utils.clip_grad_norm_(script.net.parameters(), 2.0, norm_type=kind)
            else:
                nn.utils.clip_grad_value_(script.net.parameters(), 0.5)
        script.step()
        same(replica, script)
    replica.close()
