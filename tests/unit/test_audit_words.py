"""An audit says which tensors of the trainer's file it did not compare."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.ops.trainer_checkpoint import audit_command as verb
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template


@pytest.mark.parametrize("keeps_optimizer", [True, False])
@pytest.mark.parametrize("norms", [0, 2])
def test_buffers_are_not_among_what_is_equal(
    norms: int, keeps_optimizer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(4, 4), *(torch.nn.BatchNorm1d(4) for _ in range(norms))]
    net = torch.nn.Sequential(*layers)
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    net(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    tree = {"net": net.state_dict(), "step": 1}
    if keeps_optimizer:
        tree["optimizer"] = optimizer.state_dict()
    layout = Layout.of_shapes([tuple(p.shape) for p in parameters])
    names = [name for name, _ in net.named_parameters()]
    states = tuple(dict(optimizer.state[p]) for p in parameters)
    values = {layout.parameters[i].name: p.detach().clone() for i, p in enumerate(parameters)}
    settings = OptimizerConfig(name="adamw", learning_rate=1e-3)
    snapshot = Snapshot(1, "", layout, settings, values, states)
    template = read_template(tree, layout, names, "a.pt")

    verb._print(bitwise_audit.audit_snapshot(template, snapshot), Path("a.pt"))
    said = capsys.readouterr().out
    count = len(parameters) * (4 if keeps_optimizer else 1)
    kinds = "parameters and optimizer tensors" if keeps_optimizer else "parameters"
    assert said.startswith(f"step 1: all {count} {kinds} of a.pt equal, bit for bit")
    buffers = sum(1 for _ in net.buffers())
    told = f"{buffers} tensors of the file (buffers) are not in the replica"
    assert (told in said) == bool(buffers)
    assert ("holds no optimizer state" in said) != keeps_optimizer

    template.parameters[0][0, 0] += 1
    verb._print(bitwise_audit.audit_snapshot(template, snapshot), Path("a.pt"))
    said = capsys.readouterr().out
    assert said.startswith(f"step 1: 1 of {count} {kinds} differ")
    assert (told in said) == bool(buffers)
