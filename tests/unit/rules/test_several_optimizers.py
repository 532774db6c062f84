"""Muon beside AdamW over one model, each with its own scheduler, against a script."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused_as import Wanted, like, refused_as
from support.scripted import Mixed, Script, flat, replica_of
from torch import nn
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, StepLR

from flowcheck.config import GroupConfig, OptimizerConfig, OptimizerPartConfig
from flowcheck.config.optimizer_config import ScalerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_options import ONE_OPTIMIZER_ONLY
from flowcheck.findings.catalog.refused_optimizers import (
    IN_NO_TABLE,
    IN_TWO_TABLES,
    NO_PARAMETER_LEFT,
    UNKNOWN_CLASS,
)
from flowcheck.findings.catalog.trainer_checkpoints import SEVERAL_OPTIMIZERS
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.checkpoint.trainer_state import TrainerState, trainer_state
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, optimizer_numbering
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import write
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

STEPS, KEPT = 200, 73
OVERFLOWS = (3, 40, 41)
STATED = OptimizerConfig(
    each=(
        OptimizerPartConfig(
            key="muon",
            name="Muon",
            parameters=("ndim=2",),
            learning_rate=0.02,
            momentum=0.9,
            arguments={"ns_steps": 3},
            schedule="CosineAnnealingLR",
            schedule_arguments={"T_max": 150},
        ),
        OptimizerPartConfig(
            key="adamw",
            name="adamw",
            parameters="rest",
            learning_rate=0.01,
            groups=(GroupConfig(parameters=("*.bias",), weight_decay=0.0),),
            schedule="StepLR",
            schedule_arguments={"step_size": 30, "gamma": 0.7},
        ),
    ),
    clip_norm=5.0,
)
FACTORY = """
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR


def make(named):
    wide = [p for _, p in named if p.dim() == 2]
    biases = [p for n, p in named if n.endswith(".bias")]
    rest = [p for n, p in named if p.dim() != 2 and not n.endswith(".bias")]
    muon = torch.optim.Muon(wide, lr=0.02, momentum=0.9, ns_steps=3)
    adamw = torch.optim.AdamW([{"params": biases, "weight_decay": 0.0}, {"params": rest}], lr=0.01,
                              foreach=False, fused=False)
    return {"muon": muon, "adamw": adamw}, [StepLR(adamw, 30, 0.7), CosineAnnealingLR(muon, 150)]
"""


class Trainer:
    """As a script does it, which has nothing of ours."""

    def __init__(self, net: nn.Module, *, scaled: bool = False, **kernels: bool) -> None:
        self.net, own = net, dict(net.named_parameters())
        biases = [p for n, p in own.items() if n.endswith(".bias")]
        rest = [p for n, p in own.items() if p.dim() != 2 and not n.endswith(".bias")]
        self.muon = torch.optim.Muon(
            [p for p in own.values() if p.dim() == 2], lr=0.02, momentum=0.9, ns_steps=3
        )
        groups = [{"params": biases, "weight_decay": 0.0}, {"params": rest}]
        self.adamw = torch.optim.AdamW(groups, lr=0.01, **kernels)
        self.schedulers: dict[str, LRScheduler] = {
            "adamw": StepLR(self.adamw, 30, 0.7),
            "muon": CosineAnnealingLR(self.muon, 150),
        }
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=64.0, growth_interval=9, enabled=scaled
        )
        self.scaler.scale(torch.zeros(()))

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"muon": self.muon, "adamw": self.adamw}

    def step(self) -> None:
        for own in self.optimizers.values():
            self.scaler.unscale_(own)
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        for own in self.optimizers.values():
            self.scaler.step(own)
        self.scaler.update()
        for scheduler in self.schedulers.values():
            scheduler.step()

    def same(self, replica: Replica) -> None:
        assert replica.parameters().tobytes() == flat(self.net.parameters())
        for mine, p in zip(replica.states(), self.net.parameters(), strict=True):
            own = self.muon if p.dim() == 2 else self.adamw
            theirs = own.state.get(p, {})
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                assert flat([mine[name].tensor]) == flat([value]), (replica.step, name)


def started(**kernels: bool) -> tuple[Script, Trainer]:
    script = Script(lambda net: torch.optim.SGD(net.parameters()))
    return script, Trainer(script.net, **kernels)


def by_factory(folder: Path) -> OptimizerConfig:
    (folder / "train.py").write_text(FACTORY)
    return OptimizerConfig(factory=f"{folder}/train.py:make", clip_norm=5.0)


def taken(folder: Path, steps: int) -> tuple[Script, Trainer, TrainerState]:
    script, trainer = started()
    replica = replica_of(script, STATED, folder / "state")
    for step in range(1, steps + 1):
        replica.apply(step, script.backward())
        trainer.step()
    trainer.same(replica)
    replica.close()
    return script, trainer, trainer_state(step_snapshot.copy_snapshot(folder / "state", STATED))


def goes_on(script: Script, trainer: Trainer, resumed: Trainer) -> None:
    """Both take the same gradients."""
    for _ in range(12):
        script.backward()
        for one, other in zip(resumed.net.parameters(), script.parameters, strict=True):
            one.grad = other.grad.clone() if other.grad is not None else None
        trainer.step()
        resumed.step()
        assert flat(resumed.net.parameters()) == flat(script.parameters)
    assert flat(resumed.muon.state[p]["momentum_buffer"] for p in resumed.muon.state) == flat(
        trainer.muon.state[p]["momentum_buffer"] for p in trainer.muon.state
    )


@pytest.mark.parametrize("made_by", [pytest.param("tables", marks=pytest.mark.nightly), "factory"])
def test_two_hundred_steps_of_both_have_torchs_bits(made_by: str, tmp_path: Path) -> None:
    # Tables state no kernels: those of a script that leaves them to torch. FACTORY names its own.
    of_tables = made_by == "tables"
    config = STATED if of_tables else by_factory(tmp_path)
    script, trainer = started() if of_tables else started(foreach=False, fused=False)
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        trainer.step()
        if step < 4 or step % 20 == 0:
            trainer.same(replica)
        if step == KEPT:
            replica.close()
            replica = Replica.open(tmp_path / "state", config)
    replica.close()
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
    theirs = {key: own.state_dict() for key, own in trainer.optimizers.items()}
    assert found.optimizers.keys() == theirs.keys()
    for key, own in theirs.items():
        assert found.optimizers[key]["param_groups"] == own["param_groups"]
        assert found.optimizers[key]["state"].keys() == own["state"].keys()
        assert found.scheduler[key] == trainer.schedulers[key].state_dict()


def test_a_loss_scale_skips_only_the_optimizer_whose_gradients_overflow(tmp_path: Path) -> None:
    import msgspec

    scaler = ScalerConfig(init_scale=64.0, growth_interval=9)
    config = msgspec.structs.replace(STATED, scaler=scaler)
    script = Script(lambda net: torch.optim.SGD(net.parameters()))
    trainer = Trainer(script.net, scaled=True)
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, 61):
        script.backward()
        wide = [p for p in script.parameters if (p.dim() == 2) == (step == 40)]
        if step in OVERFLOWS:
            assert wide[0].grad is not None
            wide[0].grad.view(-1)[0] = torch.inf
        replica.apply(step, flat(p.grad for p in script.parameters if p.grad is not None))
        trainer.step()
        trainer.same(replica)
        assert replica.sections()["scaler"][0] == trainer.scaler.get_scale()
    replica.close()


def test_torch_goes_on_bit_for_bit_from_a_saved_step(tmp_path: Path) -> None:
    script, trainer, found = taken(tmp_path, KEPT)
    folder = checkpoint_save.save_trainer_state(found, tmp_path / "saved", script.layout())
    kept = checkpoint_save.load(folder)
    resumed = Trainer(Mixed())
    resumed.net.load_state_dict(kept.parameters, strict=False)
    for key, own in resumed.optimizers.items():
        own.load_state_dict(kept.optimizer_state_dict()[key])
        resumed.schedulers[key].load_state_dict(found.scheduler[key])
    goes_on(script, trainer, resumed)


@pytest.mark.filterwarnings("ignore")
def test_a_dcp_folder_is_loaded_by_torchs_own_loader_into_both(tmp_path: Path) -> None:
    script, trainer, found = taken(tmp_path, KEPT)
    parts = contents_of(found, script.layout())
    write(parts, tmp_path / "dcp", "dcp")
    resumed = Trainer(Mixed())
    both = list(resumed.optimizers.values())
    model, states = get_state_dict(resumed.net, both)
    tree: dict[str, Any] = {"model": model, "optimizer": states}
    tree["model"] = {name: model[name] for name in found.model}
    dcp_load(tree, checkpoint_id=tmp_path / "dcp")
    resumed.net.load_state_dict(tree["model"], strict=False)
    set_state_dict(
        resumed.net, both, model_state_dict=resumed.net.state_dict(), optim_state_dict=states
    )
    for key, own in resumed.schedulers.items():
        own.load_state_dict(found.scheduler[key])
    goes_on(script, trainer, resumed)


def trainers_file(trainer: Trainer, step: int) -> dict[str, Any]:
    """AdamW first, as the job does not have it."""
    raw = io.BytesIO()
    optimizers = [trainer.adamw.state_dict(), trainer.muon.state_dict()]
    schedulers = {key: own.state_dict() for key, own in trainer.schedulers.items()}
    model = trainer.net.state_dict()
    torch.save({"model": model, "opt": optimizers, "sched": schedulers, "step": step}, raw)
    raw.seek(0)
    tree: dict[str, Any] = torch.load(raw)
    return tree


def test_a_trainers_own_file_passes_an_audit_and_is_filled_with_a_later_step(
    tmp_path: Path,
) -> None:
    script, trainer = started()
    replica = replica_of(script, STATED, tmp_path / "state")
    files = {}
    for step in range(1, 41):
        replica.apply(step, script.backward())
        trainer.step()
        files[step] = trainers_file(trainer, step)
    held = {name: array.copy() for name, array in replica.sections().items()}
    replica.close()
    layout = script.layout()
    order = optimizer_numbering(STATED, layout)
    taken = step_snapshot.copy_snapshot(tmp_path / "state", STATED)
    own = read_template(files[40], layout, (), "the file", order=order)
    passed = bitwise_audit.audit_snapshot(own, taken)
    assert passed.passed and passed.tensors > 2 * len(layout.parameters)
    flat_of_file = flat_state(own, layout, STATED)
    assert {name: array.tobytes() for name, array in flat_of_file.items()} == {
        name: array.tobytes() for name, array in held.items()
    }
    settings = ParamGroupSettings(STATED, layout)
    template = read_template(files[10], layout, (), "the file", order=order)
    template_fill.fill_template(template, taken, settings.rate, settings)
    whole = trainers_file(trainer, 40)
    for key in ("sched", "step"):
        assert template.tree[key] == whole[key]
    for mine, theirs in zip(template.tree["opt"], whole["opt"], strict=True):
        assert mine["param_groups"] == theirs["param_groups"]
        for number, states in theirs["state"].items():
            for name, value in states.items():
                assert torch.equal(mine["state"][number][name], value)
    with refused_as(SEVERAL_OPTIMIZERS, optimizers=2):
        read_template(trainers_file(trainer, 40), layout, (), "the file")


def test_a_format_that_holds_one_refuses_by_name(tmp_path: Path) -> None:
    script, _, found = taken(tmp_path, 2)
    with refused_as(ONE_OPTIMIZER_ONLY, optimizers=2):
        write(contents_of(found, script.layout()), tmp_path / "out", "deepspeed")


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        ([("sgd", ("a",))], like(IN_NO_TABLE, value="'b'")),
        (
            [("sgd", ("a",)), ("adam", ("*",))],
            like(IN_TWO_TABLES, name="a"),
        ),
        (
            [("sgd", ("*",)), ("adam", "rest")],
            like(NO_PARAMETER_LEFT, value="'adam'"),
        ),
        (
            [("lion", ("a",)), ("adam", "rest")],
            like(UNKNOWN_CLASS, value="'lion'"),
        ),
    ],
)
def test_tables_that_do_not_share_the_model_out_are_refused(
    each: list[tuple[str, Any]], wanted: Wanted
) -> None:
    tables = tuple(OptimizerPartConfig(name=n, parameters=p, learning_rate=0.1) for n, p in each)
    layout = Layout.of_shapes([(2, 3), (3,)], names=["a", "b"])
    with refused_as(wanted, kind=ConfigError):
        check_optimizer(OptimizerConfig(each=tables), layout)
