"""Checkpoints: whole or absent, and plain torch trains on from them."""

import errno
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.refused_as import refused_as
from support.room import no_room

from flowcheck import atomic_write
from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.step_arithmetic import SQUARE_ROOTS
from flowcheck.findings.catalog.unloadable_checkpoints import OTHER_RUN_HERE
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.param_layout import Layout

CONFIGS = [
    OptimizerConfig(name="sgd", learning_rate=0.1),
    OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, dampening=0.2),
    OptimizerConfig(name="adam", learning_rate=1e-2, amsgrad=True),
    OptimizerConfig(name="adamw", learning_rate=1e-2),
    OptimizerConfig(name="adamw", learning_rate=1e-2, implementation="fused"),
    OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, implementation="fused"),
]


def conv_and_linear() -> list[torch.Tensor]:
    torch.manual_seed(5)
    conv = torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last)
    return [conv, torch.randn(11), torch.randn(4, 9), torch.randn(())]


def flat(tensors: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([torch.as_strided(t, (t.numel(),), (1,)) for t in tensors]).numpy().copy()


def random_gradients(like: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    torch.manual_seed(100 + step)
    return [torch.randn_like(t) for t in like]


@pytest.fixture
def trained(tmp_path):
    """A replica after `steps` steps and the tensors it began with."""
    made = []

    def train(config: OptimizerConfig, steps: int) -> Replica:
        start = conv_and_linear()
        layout = Layout.of(
            [(tuple(t.shape), t.stride()) for t in start], names=["conv.w", "conv.b", "fc.w", "s"]
        )
        replica = Replica.create(tmp_path / f"state{len(made)}", layout, config, flat(start))
        made.append(replica)
        for step in range(1, steps + 1):
            replica.apply(step, flat(random_gradients(start, step)))
        return replica

    yield train
    for replica in made:
        replica.close()


def built(config: OptimizerConfig, tensors) -> torch.optim.Optimizer:
    layout = Layout.of([(tuple(t.shape), t.stride()) for t in tensors])
    leaves = [torch.nn.Parameter(t) for t in tensors]
    optimizer = build_optimizer(config, layout, leaves).optimizers[0]
    for group in optimizer.param_groups:  # the very tensors, whose gradients are set here
        group["params"] = list(tensors)
    return optimizer


def torch_steps(tensors, optimizer, first: int, last: int) -> None:
    for step in range(first, last + 1):
        for tensor, grad in zip(tensors, random_gradients(tensors, step), strict=True):
            tensor.grad = grad
        optimizer.step()


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.name}-{c.momentum}-{c.implementation}"
)
@pytest.mark.parametrize("taken", [0, 1, 6])
def test_plain_torch_goes_on_from_the_files_as_if_nothing_had_happened(
    config, taken, trained, tmp_path
):
    saved = checkpoint_save.load(checkpoint_save.save(trained(config, taken), tmp_path / "out"))
    uninterrupted = conv_and_linear()
    torch_steps(uninterrupted, built(config, uninterrupted), 1, 10)

    resumed = conv_and_linear()
    for tensor, value in zip(resumed, saved.parameters.values(), strict=True):
        tensor.copy_(value)
    optimizer = built(config, resumed)
    optimizer.load_state_dict(saved.optimizer_state_dict())
    torch_steps(resumed, optimizer, taken + 1, 10)
    assert flat(resumed).tobytes() == flat(uninterrupted).tobytes()


def test_the_model_file_is_what_safetensors_users_expect(trained, tmp_path):
    replica = trained(CONFIGS[3], 2)
    folder = checkpoint_save.save(replica, tmp_path / "out")
    model = load_file(folder / "model.safetensors")
    assert {n: tuple(t.shape) for n, t in model.items()} == {
        "conv.w": (6, 5, 3, 3),
        "conv.b": (11,),
        "fc.w": (4, 9),
        "s": (),
    }
    for name, tensors in replica.tensors().items():
        assert torch.equal(model[name], tensors["value"])
        assert model[name].is_contiguous()


def test_the_manifest_says_what_the_checkpoint_is_and_rests_on(trained, tmp_path):
    replica = trained(CONFIGS[3], 2)
    folder = checkpoint_save.save(
        replica,
        tmp_path / "out",
        evidence=[earlier_finding("weights: broadcast")],
        assumed=[SQUARE_ROOTS()],
    )
    assert folder == tmp_path / "out" / "step-2"
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["model.safetensors", "optimizer.safetensors", "manifest.json"]
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["digest"]) == (2, replica.digest)
    assert manifest["optimizer"]["name"] == "adamw"
    [evidence], [assumed] = manifest["evidence"], manifest["assumed"]
    assert evidence["arguments"] == {"sentence": "weights: broadcast"}
    assert assumed == {
        "code": "arithmetic.square_roots",
        "arguments": {},
        "until_audit": True,
        "sentence": str(SQUARE_ROOTS()),
        "remedy": SQUARE_ROOTS().remedy,
    }
    assert load_manifest(folder).assumed == (SQUARE_ROOTS(),)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["latest", "step-2"]
    assert (tmp_path / "out/latest").read_text() == "step-2\n"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
def test_a_missing_cut_or_changed_file_never_looks_whole(trained, tmp_path, name):
    folder = checkpoint_save.save(trained(CONFIGS[2], 2), tmp_path / "out")
    raw = (folder / name).read_bytes()
    flipped = bytearray(raw)
    flipped[len(raw) // 3] ^= 0xFF
    for broken in (raw[:-5], bytes(flipped), b""):
        (folder / name).write_bytes(broken)
        with pytest.raises(StateError):
            checkpoint_save.load(folder)
    (folder / name).unlink()
    with pytest.raises(StateError):
        checkpoint_save.load(folder)
    with pytest.raises(StateError):
        checkpoint_save.load(tmp_path / "nowhere")


def test_a_save_that_fails_half_way_leaves_nothing(trained, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    calls = []

    def second_fails(path, tensors, *_, **more):
        calls.append(path)
        return full() if len(calls) == 2 else path.write_bytes(b"some")

    monkeypatch.setattr(checkpoint_save, "write_tensors", second_fails)
    with pytest.raises(OSError, match="No space"):
        checkpoint_save.save(trained(CONFIGS[2], 1), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_no_room_for_the_manifest_alone_is_told_by_name(trained, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")  # as write(2) tells it: of no file

    monkeypatch.setattr(atomic_write, "write_new", full)
    with pytest.raises(OSError, match="No space") as caught:
        checkpoint_save.save(trained(CONFIGS[2], 1), tmp_path / "out")
    assert caught.value.filename == f"{tmp_path}/out/step-1/manifest.json"
    assert list((tmp_path / "out").iterdir()) == []


def test_the_same_step_twice_is_kept_and_another_run_is_not_overwritten(trained, tmp_path):
    first = trained(CONFIGS[3], 2)
    folder = checkpoint_save.save(first, tmp_path / "out")
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert checkpoint_save.save(first, tmp_path / "out") == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    with refused_as(OTHER_RUN_HERE):
        checkpoint_save.save(trained(CONFIGS[2], 2), tmp_path / "out")


@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
def test_a_damaged_one_of_the_same_step_is_written_anew(trained, tmp_path, how):
    replica = trained(CONFIGS[3], 2)
    folder = checkpoint_save.save(replica, tmp_path / "out")
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[:-5] if how == "cut" else raw[:-1] + b"~")
    if how == "missing":
        (folder / "model.safetensors").unlink()
    assert checkpoint_save.save(replica, tmp_path / "out") == folder
    assert (folder / "model.safetensors").read_bytes() == raw
    assert checkpoint_save.load(folder).manifest.step == 2
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["latest", "step-2"]


def test_no_room_for_a_checkpoint_is_an_error_of_the_system_and_leaves_nothing(trained, tmp_path):
    replica = trained(OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9), 1)
    with no_room(1000), pytest.raises(OSError, match=r"model\.safetensors") as caught:
        checkpoint_save.save(replica, tmp_path / "out")
    assert caught.value.errno == errno.EFBIG
    assert list((tmp_path / "out").iterdir()) == []
