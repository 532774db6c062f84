"""Megatron-LM's folders: read with all that a run keeps beside its tensors, and filled from an
earlier one, so that torch's optimizer and megatron-core's own go on bit for bit."""

from __future__ import annotations

import argparse
import copy
import random
import shutil
import sys
import types
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.refused_as import like, refused_as
from support.steps import Net, given_of, layout_of, made, trained

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import megatron_checkpoints as findings
from flowcheck.findings.catalog.restored_state import EARLIER_PARTS
from flowcheck.findings.catalog.trainer_settings import SETTING_DIFFERS
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

BEFORE, AFTER, BATCH = 3, 6, 16
GROUP = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
"""By what its loader knows a group again."""
ENUMS = "megatron.core.transformer.enums"
NAME = "mp_rank_00/model_optim_rng.pt"


def parts(net: Net, optimizer: torch.optim.Optimizer, step: int) -> CheckpointContents:
    return contents_of(given_of(net, optimizer, step), layout_of(net))


def tree_of(net: Net, optimizer: Any, step: int, backend: Any) -> dict[str, Any]:
    """As generate_state_dict makes it."""
    rng = {"random_rng_state": random.getstate(), "np_rng_state": np.random.get_state()}
    return {
        "args": argparse.Namespace(
            num_layers=2,
            global_batch_size=BATCH,
            consumed_train_samples=BATCH * step,
            attention_backend=backend,
        ),
        "checkpoint_version": 3.0,
        "iteration": step,
        "model": {**net.state_dict(), "inner._extra_state": None},
        "optimizer": optimizer,
        "opt_param_scheduler": {"max_lr": 1e-2, "num_steps": BATCH * step},
        "rng_state": [rng],
    }


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder with its step BEFORE; the class of an argument is gone again behind it."""
    net, optimizer = made()
    trained(net, optimizer, 1, BEFORE)
    optimizer.param_groups[0].update(GROUP)
    with monkeypatch.context() as patched:
        module = types.ModuleType(ENUMS)
        backend = Enum("AttnBackend", {"flash": 1, "auto": 5}, module=ENUMS)  # type: ignore[misc]
        module.AttnBackend = backend  # type: ignore[attr-defined]
        for name in ("megatron", "megatron.core", "megatron.core.transformer", ENUMS):
            patched.setitem(sys.modules, name, module)
        saved(tmp_path / "run", tree_of(net, optimizer.state_dict(), BEFORE, backend.auto))
    return tmp_path / "run"


def saved(run: Path, tree: dict[str, Any]) -> None:
    place = run / f"iter_{tree['iteration']:07d}" / NAME
    place.parent.mkdir(parents=True)
    torch.save(tree, place)
    (run / "latest_checkpointed_iteration.txt").write_text(str(tree["iteration"]))


def test_a_run_goes_on_bit_for_bit_from_a_folder_filled_from_its_earlier_one(
    earlier: Path, tmp_path: Path
) -> None:
    net, optimizer = made()
    trained(net, optimizer, 1, AFTER)
    found = read_template(read(earlier), layout_of(net), (), "run")
    assert (found.step, found.names) == (BEFORE, tuple(dict(net.named_parameters())))
    told = write(
        parts(net, optimizer, AFTER), tmp_path / "out", "megatron", FormatOptions(like=earlier)
    )
    assert EARLIER_PARTS(parts=["random states"], step=3) in told.resume_caveats
    assert (tmp_path / "out/latest_checkpointed_iteration.txt").read_text() == str(AFTER)
    path = tmp_path / "out/iter_0000006" / NAME
    left = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    assert f"{ENUMS}.AttnBackend" in left
    assert not any(name.startswith("flowcheck") for name in left)
    assert ENUMS not in sys.modules
    tree = read(tmp_path / "out")
    assert (tree["iteration"], tree["checkpoint_version"]) == (AFTER, 3.0)
    assert tree["args"].consumed_train_samples == BATCH * AFTER
    assert tree["opt_param_scheduler"]["num_steps"] == BATCH * AFTER
    assert tree["args"].attention_backend.made_with == (5,)
    other, again = made(seed=9)
    other.load_state_dict({k: v for k, v in tree["model"].items() if v is not None})
    again.load_state_dict(tree["optimizer"])
    trained(net, optimizer, AFTER + 1, AFTER + 3)
    trained(other, again, AFTER + 1, AFTER + 3)
    assert all(map(torch.equal, net.parameters(), other.parameters()))


def test_masters_and_the_loss_scale_lie_where_a_float16_optimizer_has_them(tmp_path: Path) -> None:
    net, optimizer = made()
    trained(net, optimizer, 1, BEFORE)
    now = parts(net, optimizer, AFTER)
    masters = {name: value + 1 for name, value in now.trainer_state.model.items()}
    model = {name: value.to(torch.bfloat16) for name, value in now.trainer_state.model.items()}
    scaler = {"scale": 512.0, "_growth_tracker": 7}
    given = replace(now.trainer_state, model=model, masters=masters, scaler=scaler)
    inner = {
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "grad_scaler": {"scale": torch.tensor([1.0]), "growth_tracker": 0, "hysteresis_tracker": 2},
        "fp32_from_fp16_params": [[p.detach().clone() for p in net.parameters()]],
    }
    saved(tmp_path / "run", tree_of(net.to(torch.bfloat16), inner, BEFORE, None))
    like = FormatOptions(like=tmp_path / "run")
    half = replace(now, trainer_state=given, model=model)
    write(half, tmp_path / "out", "megatron", like)
    own = read(tmp_path / "out")["optimizer"]
    assert all(map(torch.equal, own["fp32_from_fp16_params"][0], masters.values()))
    assert own["grad_scaler"]["scale"].tolist() == [512.0]
    assert (own["grad_scaler"]["growth_tracker"], own["grad_scaler"]["hysteresis_tracker"]) == (
        7,
        2,
    )
    with refused_as(findings.OTHER_MASTERS):
        write(
            replace(half, trainer_state=replace(given, masters=None)),
            tmp_path / "no",
            "megatron",
            like,
        )
    assert not (tmp_path / "no").exists()


def test_megatron_cores_own_optimizer_takes_what_was_written(earlier: Path, tmp_path: Path) -> None:
    core = pytest.importorskip("megatron.core.optimizer.optimizer")
    net, optimizer = made()
    trained(net, optimizer, 1, AFTER)
    write(parts(net, optimizer, AFTER), tmp_path / "out", "megatron", FormatOptions(like=earlier))
    tree = torch.load(tmp_path / "out/iter_0000006" / NAME, weights_only=False)
    other, again = made(seed=9)
    wrapped = core.FP32Optimizer.__new__(core.FP32Optimizer)  # its own wants a GPU
    wrapped.optimizer = again
    again.param_groups[0].update(GROUP)
    wrapped.load_state_dict(tree["optimizer"])
    other.load_state_dict({k: v for k, v in tree["model"].items() if v is not None})
    trained(net, optimizer, AFTER + 1, AFTER + 3)
    trained(other, again, AFTER + 1, AFTER + 3)
    assert all(map(torch.equal, net.parameters(), other.parameters()))
    assert tree["args"].attention_backend.name == "auto"


def test_what_cannot_be_filled_is_refused(earlier: Path, tmp_path: Path) -> None:
    net, optimizer = made()
    trained(net, optimizer, 1, AFTER)
    own = parts(net, optimizer, AFTER)
    with refused_as(findings.NEEDS_LIKE, kind=ConfigError):
        write(own, tmp_path / "out", "megatron")
    renamed = replace(
        own, trainer_state=replace(own.trainer_state, model={"strange": torch.zeros(1)})
    )
    with refused_as(findings.NO_PARAMETER, parameter="strange"):
        write(renamed, tmp_path / "out", "megatron", FormatOptions(like=earlier))
    (earlier / "iter_0000003/mp_rank_01").mkdir()
    with refused_as(findings.RANKS_MISSING, found=1, ranks=2):
        read(earlier)
    shutil.copy(earlier / "iter_0000003" / NAME, earlier / "iter_0000003/mp_rank_01")
    with refused_as(findings.SEVERAL_RANKS, ranks=2):
        read(earlier)


def test_an_earlier_folder_of_other_settings_than_stated_is_refused(earlier: Path) -> None:
    """Its groups are those that the run goes on with."""
    net, optimizer = made()
    trained(net, optimizer, 1, AFTER)
    own = optimizer.state_dict()["state"]
    (group,) = optimizer.state_dict()["param_groups"]
    values = {name: p.detach() for name, p in net.named_parameters()}
    stated = {key: group[key] for key in ("betas", "eps", "weight_decay")}
    right = OptimizerConfig(name="adamw", learning_rate=1e-2, **stated)
    states = tuple(own[number] for number in range(len(values)))
    taken = Snapshot(AFTER, "", layout_of(net), right, values, states)
    options = FormatOptions(like=earlier)
    assert FoundStep(taken, "x").contents("megatron", options).trainer_state.step == AFTER
    taken = replace(taken, optimizer=OptimizerConfig(name="adamw", learning_rate=1e-2, eps=1e-3))
    with refused_as(
        like(SETTING_DIFFERS, group=0, setting="eps", file="1e-08", stated="0.001"), file=earlier
    ):
        FoundStep(taken, "x").contents("megatron", options)
