"""DeepSpeed itself reads the folders written for it: its script for whole weights, its engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.steps import given_of, layout_of, made, trained

from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import write
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions

pytestmark = pytest.mark.nightly
TESTS = Path(__file__).resolve().parents[1]
LAST = 3
COMPILED_S = 600
"""DeepSpeed compiles what its ranks talk by when it is first used."""


def test_its_script_makes_the_whole_weights_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    script = pytest.importorskip("deepspeed.utils.zero_to_fp32")
    net, optimizer = made()
    trained(net, optimizer, 1, LAST)
    step = contents_of(given_of(net, optimizer, LAST), layout_of(net))
    for stage in (1, 2):
        for ranks in (1, 2, 3, 7):
            folder = tmp_path / f"{stage}-{ranks}"
            write(step, folder, "deepspeed", FormatOptions(ranks=ranks, stage=stage))
            whole = script.get_fp32_state_dict_from_zero_checkpoint(str(folder))
            assert whole.keys() == step.model.keys()
            assert all(torch.equal(whole[name], own) for name, own in step.model.items())


@pytest.mark.parametrize("stage", [1, 2])
def test_its_engine_goes_on_from_a_folder_as_torch_does(stage: int, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    net, optimizer = made()
    trained(net, optimizer, 1, LAST)
    step = contents_of(given_of(net, optimizer, LAST), layout_of(net))
    write(step, tmp_path / "in", "deepspeed", FormatOptions(ranks=2, stage=stage))
    (tmp_path / "out").mkdir()
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["-m", "support.deepspeed_resumed", str(tmp_path / "in"), str(stage)]
    # ninja comes with it and is called by name.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*words, str(tmp_path / "out")],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PATH": path},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=COMPILED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    torch.manual_seed(77)
    optimizer.zero_grad()
    net(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
    for rank in (0, 1):
        told = torch.load(tmp_path / "out" / f"{rank}.pt")
        for name, own in net.named_parameters():
            assert torch.equal(told["loaded"][name], step.model[name]), name
            assert torch.equal(told["after"][name], own), name
