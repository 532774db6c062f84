"""Masters, averages, a loss scale and a schedule of several, in and out of a trainer's own file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused_as import refused_as
from support.scripted import Mixed, flat
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from flowcheck.config import OptimizerConfig
from flowcheck.config.optimizer_config import AverageConfig, ScalerConfig
from flowcheck.findings.catalog.restored_state import AVERAGES, LOSS_SCALE, MASTERS
from flowcheck.findings.catalog.trainer_checkpoints import NO_AVERAGES, NO_LOSS_SCALE, NO_MASTERS
from flowcheck.findings.finding import Entry
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, optimizer_numbering
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate, read_template
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

STEPS, BASE = 24, 9
OVERFLOWS = (1, 6, 14)
FACTORY = """
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


def make(named):
    small = [p for _, p in named if p.dim() < 2]
    large = [p for _, p in named if p.dim() >= 2]
    made = torch.optim.AdamW([{"params": large}, {"params": small, "weight_decay": 0.0}], lr=0.05)
    parts = [LinearLR(made, 0.1, total_iters=5), CosineAnnealingLR(made, 30)]
    return made, SequentialLR(made, parts, [5])
"""


class Trainer:
    """bfloat16, masters in float32, all of it as a script of plain torch does it."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        self.net = Mixed().bfloat16()
        own = list(self.net.parameters())
        self.masters = [p.detach().clone().float() for p in own]
        small = [m for m in self.masters if m.dim() < 2]
        large = [m for m in self.masters if m.dim() >= 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": large}, {"params": small, "weight_decay": 0.0}], lr=0.05
        )
        parts = [
            LinearLR(self.optimizer, 0.1, total_iters=5),
            CosineAnnealingLR(self.optimizer, 30),
        ]
        self.scheduler = SequentialLR(self.optimizer, parts, [5])
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4)
        self.scaler.scale(torch.zeros(()))
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.8))
        self.step = 0

    def take(self) -> bytes:
        self.step += 1
        own = list(self.net.parameters())
        gradients = [torch.randn_like(p) for p in own]
        if self.step in OVERFLOWS:
            gradients[1][0] = torch.inf
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient.float()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for p, master in zip(own, self.masters, strict=True):
                p.copy_(master)
        self.scheduler.step()
        self.average.update_parameters(self.net)
        return flat(gradients)

    def file(self) -> dict[str, Any]:
        """As read back, so that nothing is shared with what trains on."""
        raw = io.BytesIO()
        torch.save(
            {
                "model": self.net.state_dict(),
                "masters": self.masters,
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": self.scaler.state_dict(),
                "ema": self.average.state_dict(),
                "iteration": self.step,
            },
            raw,
        )
        raw.seek(0)
        tree: dict[str, Any] = torch.load(raw, weights_only=False)
        return tree


@pytest.fixture
def config(tmp_path: Path) -> OptimizerConfig:
    file = tmp_path / "train.py"
    file.write_text(FACTORY)
    return OptimizerConfig(
        factory=f"{file}:make",
        master_dtype="float32",
        scaler=ScalerConfig(init_scale=16.0, growth_interval=4),
        average=AverageConfig(decay=0.8),
    )


def layout_of(trainer: Trainer) -> Layout:
    named = dict(trainer.net.named_parameters())
    shapes = [(tuple(p.shape), p.stride()) for p in named.values()]
    return Layout.of(shapes, names=list(named), dtype="bfloat16")


def template_of(
    tree: dict[str, Any], layout: Layout, config: OptimizerConfig
) -> CheckpointTemplate:
    names = [p.name for p in layout.parameters]
    return read_template(tree, layout, names, "x", order=optimizer_numbering(config, layout))


def same_tree(one: Any, other: Any, path: str = "") -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and flat([one]) == flat([other]), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key, value in one.items():
            same_tree(value, other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for place, value in enumerate(one):
            same_tree(value, other[place], f"{path}.{place}")
    else:
        assert one == other, path


def test_a_base_with_all_of_it_goes_on_bit_for_bit(config: OptimizerConfig, tmp_path: Path) -> None:
    trainer = Trainer()
    layout = layout_of(trainer)
    replica = Replica.create(tmp_path / "state", layout, config, bytes(layout.size_bytes))
    for _ in range(BASE):
        trainer.take()
    template = template_of(trainer.file(), layout, config)
    assert (template.step, template.skipped) == (BASE, 2)
    replica.rebase(BASE, flat_state(template, layout, config), replays=False)
    for step in range(BASE + 1, STEPS + 1):
        replica.apply(step, trainer.take())
    held = step_snapshot.copy_snapshot(tmp_path / "state", config)
    found = bitwise_audit.audit_snapshot(template_of(trainer.file(), layout, config), held)
    names = [d.name for d in found.differences]
    assert found.passed, names
    each = 1 + 3 + 2  # itself, AdamW's states, its master and its average
    assert found.tensors == len(layout.parameters) * each + 3, "averages' count, scale, tracker"
    broken = trainer.file()
    broken["masters"][2] += 1
    broken["scaler"]["scale"] *= 2
    broken["ema"]["module.one"] += 1
    differ = bitwise_audit.audit_snapshot(template_of(broken, layout, config), held).differences
    wrong = {layout.parameters[2].name + "/master", "one/average", "scaler/scale"}
    assert {d.name for d in differ} == wrong
    replica.close()


def test_an_earlier_file_filled_with_a_later_step_is_the_trainers_own(
    config: OptimizerConfig, tmp_path: Path
) -> None:
    trainer = Trainer()
    layout = layout_of(trainer)
    first = trainer.file()
    weights = flat(trainer.net.parameters())
    replica = Replica.create(tmp_path / "state", layout, config, weights)
    for step in range(1, STEPS + 1):
        replica.apply(step, trainer.take())
    replica.close()
    taken = step_snapshot.copy_snapshot(tmp_path / "state", config)
    settings = ParamGroupSettings(config, layout)
    template = template_of(first, layout, config)
    filled = template_fill.fill_template(template, taken, settings.rate, settings)
    assert {LOSS_SCALE(), MASTERS(), AVERAGES()} <= set(filled.replaced)
    assert not {"scaler", "ema", "averages"} & set(filled.unchanged)
    same_tree(template.tree, trainer.file())


@pytest.mark.parametrize(
    ("lacking", "wanted"),
    [
        ("masters", NO_MASTERS),
        ("scaler", NO_LOSS_SCALE),
        ("ema", NO_AVERAGES),
    ],
)
def test_a_base_that_lacks_a_part_is_refused(
    lacking: str, wanted: Entry, config: OptimizerConfig
) -> None:
    trainer = Trainer()
    layout = layout_of(trainer)
    for _ in range(BASE):
        trainer.take()
    tree = trainer.file()
    del tree[lacking]
    with refused_as(wanted):
        flat_state(template_of(tree, layout, config), layout, config)
