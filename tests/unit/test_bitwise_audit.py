"""Audits of a step gone by, and how far apart two numbers are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.refused_as import refused_as

from flowcheck.config import ModelConfig, OptimizerConfig
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.catalog.base_checkpoints import STEP_UNKNOWN
from flowcheck.findings.catalog.replica_state_errors import OTHER_DIGEST_LOG
from flowcheck.ops.trainer_checkpoint import audit_command as verb
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_sections import named_tensors
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.digest_log import DigestLog, digests_at
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template

ADAMW = OptimizerConfig(name="adamw", learning_rate=3e-4, weight_decay=0.1)


def test_a_step_gone_by_is_audited_by_what_its_tensors_were(tmp_path: Path) -> None:
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    net = net.to(memory_format=torch.channels_last)
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.1)
    layout = Layout.of([(p.shape, p.stride()) for p in parameters])
    flat = [torch.as_strided(p.detach(), (p.numel(),), (1,)) for p in parameters]
    replica = Replica.create(tmp_path / "replica", layout, ADAMW, torch.cat(flat).numpy())
    count = len(named_tensors(replica.description, replica.sections()))
    trace = DigestLog(tmp_path / "trace", count)
    files = {}
    for step in range(1, 6):
        net(torch.randn(2, 3, 4, 4)).square().mean().backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        raw = torch.cat([torch.as_strided(g, (g.numel(),), (1,)) for g in gradients])
        replica.apply(step, raw.numpy())
        trace.append(step, replica.tensor_digests)
        optimizer.step()
        optimizer.zero_grad()
        files[step] = tmp_path / f"{step}.pt"
        torch.save({"net": net.state_dict(), "opt": optimizer.state_dict()}, files[step])
    trace.close()
    replica.close()
    with (tmp_path / "trace").open("ab") as file:
        file.write(b"torn by a kill")
    DigestLog(tmp_path / "trace", count).close()
    for step, path in files.items():
        kept = digests_at(tmp_path / "trace", step)
        assert kept is not None
        template = load_template(path, layout)
        audited = bitwise_audit.audit_digests(template, layout, ADAMW, kept)
        assert (audited.step, audited.differences) == (step, ())
        assert audited.tensors == count
        template.optimizer_state(2)["exp_avg_sq"][1, 1] *= 2
        differ = bitwise_audit.audit_digests(template, layout, ADAMW, kept).differences
        assert [d.name for d in differ] == ["2.weight/exp_avg_sq"]
    assert digests_at(tmp_path / "trace", 6) is None
    with refused_as(OTHER_DIGEST_LOG, tensors=3):
        DigestLog(tmp_path / "trace", 3)


@pytest.mark.parametrize(
    ("one", "other", "ulp"),
    [(0.0, -0.0, 0), (1.0, 1.0000001, 1), (-1e-45, 1e-45, 2), (float("nan"), 1.0, None)],
)
def test_ulps_are_counted_across_zero(one: float, other: float, ulp: int | None) -> None:
    found = bitwise_audit._difference("x", torch.tensor([one]), torch.tensor([other]))
    assert found is not None
    assert found.ulp == ulp


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("beside", ["", "scheduler", "counter"])
def test_an_optimizer_that_keeps_nothing_tells_no_step(
    momentum: float, steps: int, beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGD without momentum has an empty state at any step."""
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(steps):
        net(torch.ones(3)).sum().backward()
        optimizer.step()
        scheduler.step()
    others = {"scheduler": {"s": scheduler.state_dict()}, "counter": {"global_step": steps}}
    tree = {"net": net.state_dict(), "opt": optimizer.state_dict(), **others.get(beside, {})}
    torch.save(tree, tmp_path / "a.pt")
    layout = Layout.of_shapes([tuple(p.shape) for p in net.parameters()])
    known = bool(beside) or (momentum and not steps)
    if known:
        template = load_template(tmp_path / "a.pt", layout)
        assert (template.step, template.tells_step, template.skipped) == (steps, True, 0)
        return
    stated = load_template(tmp_path / "a.pt", layout, step=7)
    assert stated.step == 7
    if momentum:
        with refused_as(findings.STEP_NOT_TOLD, findings.STEPS_DIFFER):
            load_template(tmp_path / "a.pt", layout)
        return
    run = RunDir(tmp_path / "run")
    run.replica.parent.mkdir(parents=True)
    settings = OptimizerConfig(name="sgd", learning_rate=0.1)
    values = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()
    Replica.create(run.replica, layout, settings, values).close()
    monkeypatch.setattr(RunDir, "settings", lambda _: SimpleNamespace(model=ModelConfig()))
    monkeypatch.setattr(verb, "optimizer_of_run", lambda _: settings)
    with refused_as(STEP_UNKNOWN):
        verb.read_checkpoint_template(run, tmp_path / "a.pt")
    assert verb.read_checkpoint_template(run, tmp_path / "a.pt", 0).step == 0
