"""A step in each format: torch and safetensors load it, trainers go on from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.formatted import AFTER, ALONE, BEFORE, WHOLE, run, step_before
from support.refused_as import refused_as
from support.steps import Net, given_of, layout_of, made, trained
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
from torch.optim.swa_utils import AveragedModel

import flowcheck
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_options as findings
from flowcheck.findings.catalog.output_paths import EXISTS
from flowcheck.findings.catalog.refused_restores import STEP_NOT_THERE, TEMPLATE_OR_FORMAT
from flowcheck.findings.catalog.restored_state import NAMES, TENSORS_UNKNOWN
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.checkpoint_formats.format_registry import FORMATS, FormatOptions, keys_in
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    return step_before()


@pytest.fixture(scope="module")
def kept(step: CheckpointContents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints with one in it."""
    out = tmp_path_factory.mktemp("kept")
    checkpoint_save.save_trainer_state(step.trainer_state, out, step.layout)
    return out


def test_a_trainer_loads_the_file_under_its_own_keys_and_goes_on_bit_for_bit(
    step: CheckpointContents, tmp_path: Path
) -> None:
    keys = keys_in("model=app.net,optimizer=app.optim,step=global_step,scheduler=")
    write(step, tmp_path / "step.pt", "torch", FormatOptions(keys))
    tree = torch.load(tmp_path / "step.pt", weights_only=True)
    assert tree.keys() == {"app", "global_step"} and tree["global_step"] == BEFORE
    net, optimizer = made(seed=99)
    net.load_state_dict(tree["app"]["net"], strict=True)
    optimizer.load_state_dict(tree["app"]["optim"])
    trained(net, optimizer, BEFORE + 1, AFTER)
    straight, its = made()
    trained(straight, its, 1, AFTER)
    assert all(map(torch.equal, net.parameters(), straight.parameters()))
    sizes = {t.untyped_storage().nbytes() for t in tree["app"]["net"].values()}
    assert sizes == {t.nbytes for t in step.model.values()}


@pytest.mark.parametrize("form", [*WHOLE, *ALONE])
def test_a_kept_step_is_restored_verified_and_loaded_in_each_format(
    form: str, step: CheckpointContents, kept: Path, tmp_path: Path
) -> None:
    out = tmp_path / "restored"
    words = ("restore", "--checkpoint", kept, "--format", form, "--out", out)
    code, said = run(*words, "--step", BEFORE, "--json")
    told = json.loads(said)
    assert (code, told["step"], told["format"]) == (0, BEFORE, form)
    assert bool(told["not_full"]) == (form in ALONE)
    assert run("verify", out)[0] == 0
    tree = flowcheck.load(out)
    assert tree["step"] == BEFORE
    assert all(torch.equal(tree["model"][name], value) for name, value in step.model.items())
    assert ("optimizer" in tree) == (form in WHOLE)
    with refused_as(EXISTS, kind=ConfigError):
        run(*words)
    assert run(*words, "--force")[0] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("form", WHOLE)
def test_what_is_read_of_each_format_is_a_base_with_every_state(
    form: str, step: CheckpointContents, tmp_path: Path
) -> None:
    write(step, tmp_path / "out", form)
    found = read_template(read(tmp_path / "out"), step.layout, (), "out")
    assert (found.step, found.names) == (BEFORE, tuple(step.model))
    assert step.trainer_state.optimizer is not None
    for index in range(len(found.names)):
        own = step.trainer_state.optimizer["state"][index]
        assert found.optimizer_state(index).keys() == own.keys()
        assert all(
            torch.equal(found.optimizer_state(index)[kind], value) for kind, value in own.items()
        )


class Tied(Net):
    """With a weight under two names, a buffer, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(5.0))
        self.head = torch.nn.Linear(5, 3, bias=False)
        self.head.weight = self.outer.weight


def test_an_earlier_checkpoint_tells_names_tied_weights_and_buffers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = Tied()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    earlier = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
    template = read_template(earlier, layout_of(net), (), "earlier")
    torch.save(earlier, tmp_path / "earlier.pt")
    trained(net, optimizer, 1, 2)
    named = given_of(net, optimizer, 2)
    unnamed = type(named)(
        2,
        named.digest,
        named.optimizer_config,
        {f"param.{i}": value for i, value in enumerate(named.model.values())},
        named.optimizer,
    )
    for form in ("torch", "dcp"):
        written = write(contents_of(unnamed, layout_of(net), template), tmp_path / form, form)
        assert not written.resume_caveats and written.older == {"mean": 0}
        mean = TENSORS_UNKNOWN(names=NAMES(["mean"]), tensors=1, step=0)
        assert written.assumed[0] == mean
        fresh = Tied()
        fresh.load_state_dict(read(tmp_path / form)["model"], strict=True)
        assert all(map(torch.equal, fresh.state_dict().values(), net.state_dict().values()))
    write(contents_of(unnamed, layout_of(net), template), tmp_path / "hf", "huggingface")
    tensors = load_file(tmp_path / "hf/model.safetensors")
    assert tensors.keys() == net.state_dict().keys() - {"head.weight"}


def grouped(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Weights of one shape in two groups, the later ones first."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    last, *rest = [layer.weight for layer in reversed(net)]
    biases = [layer.bias for layer in net]
    groups = [
        {"params": [last, *biases], "weight_decay": 0.0, "lr": 3e-3},
        {"params": rest, "weight_decay": 0.1},
    ]
    return net, torch.optim.AdamW(groups, lr=1e-2, foreach=False)


def steps_of(net: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for number in range(first, last + 1):
        torch.manual_seed(number)
        optimizer.zero_grad()
        net(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("form", WHOLE)
def test_parameters_of_one_shape_in_swapped_groups_keep_each_its_own_state(
    form: str, tmp_path: Path
) -> None:
    net, optimizer = grouped(1)
    steps_of(net, optimizer, 1, 2)
    whole = given_of(net, optimizer, 2)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    order = tuple(next(n for n, other in enumerate(listed) if other is p) for p in net.parameters())
    scheduler = {"last_epoch": 2, "_step_count": 3, "_last_lr": [1e-2, float("inf")], "t": (1, 2)}
    scaler = {"scale": 1024.0, "growth_factor": 2.0, "_growth_tracker": 2}
    averages = {name: value + 1 for name, value in whole.model.items()}
    more = {"scheduler": scheduler, "scaler": scaler, "averages": averages, "average_updates": 2}
    whole = replace(whole, order=order, optimizer_steps=2, masters=dict(whole.model), **more)
    parts = contents_of(whole, layout_of(net))
    write(parts, tmp_path / "out", form)
    tree = flowcheck.load(tmp_path / "out")
    resumed, its = grouped(9)
    resumed.load_state_dict(tree["model"], strict=True)
    if form == "dcp":
        set_optimizer_state_dict(resumed, its, optim_state_dict=tree["optimizer"])
    else:
        its.load_state_dict(tree["optimizer"])
    steps_of(net, optimizer, 3, 5)
    steps_of(resumed, its, 3, 5)
    assert all(map(torch.equal, net.parameters(), resumed.parameters()))
    assert tree["scheduler"] == scheduler and tree["scaler"] == scaler
    average = AveragedModel(resumed)
    average.load_state_dict(tree["averages"], strict=True)
    assert int(average.n_averaged) == 2
    names = tuple(whole.model)
    file = {part: held for part, held in read(tmp_path / "out").items() if part != "masters"}
    again = read_template(file, layout_of(net), names, form, 2, order)
    assert again.model.keys() == whole.model.keys(), "not the averages"
    assert all(map(torch.equal, average.module.state_dict().values(), averages.values()))
    assert tree["masters"].keys() == averages.keys()
    if form == "flowcheck":
        more_of = checkpoint_save.snapshot_of(tmp_path / "out").optional_state
        assert (more_of.average_updates, more_of.scaler["scale"], more_of.skipped) == (2, 1024.0, 0)


def test_a_step_that_is_not_kept_and_an_unknown_format_are_told(kept: Path, tmp_path: Path) -> None:
    words = ("restore", "--checkpoint", kept, "--out", tmp_path / "out")
    with refused_as(STEP_NOT_THERE, step=7, steps=(3,)):
        run(*words, "--format", "torch", "--step", 7)
    with refused_as(findings.ONE_OF, kind=ConfigError, choices=re.compile("'flowcheck', 'torch'")):
        run(*words, "--format", "onnx")
    with refused_as(TEMPLATE_OR_FORMAT):
        run(*words)
    for option, of in (
        ("--ranks", "deepspeed"),
        ("--zero", "deepspeed"),
        ("--shard-mb", "huggingface"),
    ):
        with refused_as(
            findings.OF_OTHER_FORMAT, kind=ConfigError, key=option, formats=of, given="dcp"
        ):
            run(*words, "--format", "dcp", option, 2)
    with refused_as(
        findings.OF_OTHER_FORMAT, kind=ConfigError, formats="torch and dcp", given="safetensors"
    ):
        run(*words, "--format", "safetensors", "--keys", "model=net")
    assert not (tmp_path / "out").exists()


def test_the_package_itself_loads_no_torch() -> None:
    code = "import sys, flowcheck; assert callable(flowcheck.load); print('torch' in sys.modules)"
    told = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert told.strip() == "False"


def test_every_format_has_a_writer_and_a_reader() -> None:
    for one in FORMATS.values():
        assert callable(one.write) and callable(one.read)
