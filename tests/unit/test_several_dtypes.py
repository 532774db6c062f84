"""A replica of parameters of several dtypes: torch's bits after every step, wherever it is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from support.refused_as import refused_as
from torch import nn

from flowcheck.config import OptimizerConfig, job_from
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_optimizers import FUSED_MOMENTUM
from flowcheck.findings.catalog.refused_settings import DTYPE_TWICE, DTYPES_OF_ONE_SIZE
from flowcheck.findings.catalog.replica_update_notes import STATED_TYPE_SIZE, TYPES_OPEN
from flowcheck.replica.checkpoint import checkpoint_save, step_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter

CASES = [("sgd", how) for how in ("loop", "foreach", "fused")]
CASES += [("adamw", how) for how in ("loop", "foreach", "fused")]


class Mixed(nn.Module):
    """Norms of four bytes beside layers of two, one of them of an odd number of elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(7, 3).bfloat16()
        self.norm = nn.LayerNorm(3)
        self.conv = nn.Conv2d(3, 5, 3).bfloat16().to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.randn(()).bfloat16())
        self.last = nn.Linear(3, 11).double()


def flat(tensors: list[torch.Tensor]) -> bytes:
    """Registration order, memory order, as DDP's buckets and training scripts have them."""
    own = [torch.as_strided(t.detach(), (t.numel(),), (1,)) for t in tensors]
    return b"".join(t.view(torch.uint8).numpy().tobytes() for t in own)


def layout_for(net: nn.Module, gradient_dtype: str | None = None) -> Layout:
    named = dict(net.named_parameters())
    return Layout.of(
        [(tuple(p.shape), p.stride()) for p in named.values()],
        names=list(named),
        dtype=[str(p.dtype).removeprefix("torch.") for p in named.values()],
        gradient_dtype=gradient_dtype,
    )


def weights_of(net: nn.Module) -> np.ndarray:
    """As the start-up broadcast sends them: registration order, index order."""
    own = [p.detach().contiguous().reshape(-1).view(torch.uint8) for p in net.parameters()]
    return torch.cat(own).numpy().copy()


def build(name: str, how: str, net: nn.Module) -> tuple[torch.optim.Optimizer, OptimizerConfig]:
    flags = {"foreach": how == "foreach", "fused": how == "fused"}
    parameters = list(net.parameters())
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        # torch's fused momentum of two bytes an element has other bits each time.
        more = {"momentum": 0.0 if how == "fused" else 0.9, "nesterov": how != "fused"}
        optimizer = torch.optim.SGD(parameters, lr=0.1, **more, **flags)
        more["learning_rate"] = 0.1
    else:
        optimizer = torch.optim.AdamW(parameters, lr=0.01, **flags)
        more = {"learning_rate": 0.01}
    return optimizer, OptimizerConfig(name=name, implementation=how, **more)


def take_step(net: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None) -> bytes:
    """One step of the trainer's; the gradient as it was reduced."""
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    reduced = flat([p.grad for p in net.parameters() if p.grad is not None])
    if clip is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
    return reduced


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_step_has_torchs_bits(
    name: str, how: str, clip: float | None, tmp_path: Path
) -> None:
    net, threads = Mixed(), torch.get_num_threads()
    optimizer, config = build(name, how, net)
    config = structs.replace(config, clip_norm=clip)
    layout = layout_for(net)
    weights = layout.memory_order(weights_of(net))
    replica = Replica.create(tmp_path / "state", layout, config, weights)
    assert layout.registration_order(replica.parameters()).tobytes() == flat(list(net.parameters()))
    torch.set_num_threads(1)
    try:
        for step in range(1, 6):
            replica.apply(step, take_step(net, optimizer, clip))
            sections = replica.sections()
            mine = layout.registration_order(sections.pop("parameters")).tobytes()
            assert mine == flat(list(net.parameters())), step
            for kind, section in sections.items():
                theirs = [optimizer.state[p][kind] for p in net.parameters()]
                own = section if kind == "step" else layout.registration_order(section)
                assert own.tobytes() == flat(theirs), (step, kind)
    finally:
        torch.set_num_threads(threads)
        replica.close()


def test_gradients_of_a_hook_reach_every_dtype(tmp_path: Path) -> None:
    net = Mixed()
    optimizer, config = build("adamw", "loop", net)
    layout = layout_for(net, "float16")
    weights = layout.memory_order(weights_of(net))
    replica = Replica.create(tmp_path / "state", layout, config, weights)
    for step in range(1, 4):
        reduced = [torch.randn(p.numel()).half() for p in net.parameters()]
        for p, half in zip(net.parameters(), reduced, strict=True):
            p.grad = torch.as_strided(half.to(p.dtype), p.shape, p.stride())
        optimizer.step()
        replica.apply(step, flat(list(reduced)))
        mine = layout.registration_order(replica.parameters()).tobytes()
        assert mine == flat(list(net.parameters())), step
    replica.close()


def test_checkpoint_restore_and_audit_keep_every_dtype(tmp_path: Path) -> None:
    net = Mixed()
    optimizer, config = build("adamw", "loop", net)
    layout = layout_for(net)
    state = tmp_path / "state"
    weights = layout.memory_order(weights_of(net))
    replica = Replica.create(state, layout, config, weights)
    file = tmp_path / "trainer.pt"

    def kept() -> None:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)

    replica.apply(1, take_step(net, optimizer, None))
    kept()
    template = load_template(file, layout)
    found = flat_state(template, layout, config)
    assert {k: v.tobytes() for k, v in found.items()} == {
        k: v.tobytes() for k, v in replica.sections().items()
    }
    replica.apply(2, take_step(net, optimizer, None))
    folder = checkpoint_save.save(replica, tmp_path / "out")
    loaded = checkpoint_save.load(folder)
    assert [t.dtype for t in loaded.parameters.values()] == [p.dtype for p in net.parameters()]
    template_fill.fill_template(template, checkpoint_save.snapshot_of(folder), lambda _: 0.01)
    for own, theirs in zip(template.parameters, net.parameters(), strict=True):
        assert own.dtype == theirs.dtype and torch.equal(own, theirs)
    kept()
    whole = load_template(file, layout)
    assert bitwise_audit.audit_snapshot(whole, step_snapshot.copy_snapshot(state, config)).passed
    assert bitwise_audit.audit_digests(whole, layout, config, replica.tensor_digests).passed
    with torch.no_grad():
        net.norm.weight[0] += 1
    kept()
    assert not bitwise_audit.audit_snapshot(
        load_template(file, layout), step_snapshot.copy_snapshot(state, config)
    ).passed
    replica.close()


def learned(*sizes: int) -> LearnedJob:
    parameters = tuple(Parameter(sizes=(3,), strides=(1,), element_bytes=size) for size in sizes)
    return LearnedJob(
        era=NcclEra.V2_19, communicators=(), edges=(), first_buckets=(), buckets=(), first=(),
        each=(), parameters=parameters,
    )  # fmt: skip


def test_dtypes_are_stated_where_the_wire_leaves_a_choice() -> None:
    def of(job: LearnedJob, **model: object) -> Layout:
        optimizer = {"name": "sgd", "learning_rate": 0.1}
        told = {"source": [{"file": "x"}], "optimizer": optimizer, "model": model}
        return layout_of(job, job_from(told))

    mixed = learned(4, 2, 2, 4)
    with refused_as(TYPES_OPEN, dtypes='["bfloat16", "float32"]'):
        of(mixed)
    found = of(mixed, dtypes=["float32", "float16"])
    assert [found.dtype_of(p) for p in found.parameters] == [
        "float32",
        "float16",
        "float16",
        "float32",
    ]
    assert [p.start for p in found.parameters] == [0, 24, 30, 12]
    assert of(mixed, dtypes=["bfloat16"]) == of(mixed, dtype="bfloat16")
    wide = of(learned(8, 4))
    assert [wide.dtype_of(p) for p in wide.parameters] == ["float64", "float32"]
    with refused_as(STATED_TYPE_SIZE, bytes=8, sizes="2 and 4"):
        of(mixed, dtypes=["bfloat16", "float64"])
    with refused_as(DTYPES_OF_ONE_SIZE, kind=ConfigError):
        of(mixed, dtypes=["bfloat16", "float16"])
    with refused_as(DTYPE_TWICE, kind=ConfigError):
        of(mixed, dtypes=["bfloat16"], dtype="bfloat16")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_momentum_of_two_bytes_depends_on_what_lies_behind_it(dtype: torch.dtype) -> None:
    """Why it is refused; once torch computes it, this fails and the refusal may go."""
    made = []
    for behind in (0.0, 1.0):
        memory = torch.full((128,), behind, dtype=dtype)
        memory[:64] = 0
        parameter = nn.Parameter(torch.ones(64, dtype=dtype))
        parameter.grad = torch.ones(64, dtype=dtype)
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, fused=True)
        optimizer.state[parameter] = {"momentum_buffer": memory[:64]}
        optimizer.step()
        made.append(memory[:64].clone())
    assert not torch.equal(made[0], made[1])


@pytest.mark.parametrize(
    ("momentum", "size", "refused"), [(0.9, 2, True), (0.9, 4, False), (0, 2, False)]
)
def test_momentum_that_torch_itself_does_not_repeat_is_refused(
    momentum: float, size: int, refused: bool
) -> None:
    sgd = {"name": "sgd", "learning_rate": 0.1, "momentum": momentum, "implementation": "fused"}
    dtype = "bfloat16" if size == 2 else "float32"
    config = job_from({"source": [{"file": "x"}], "optimizer": sgd, "model": {"dtype": dtype}})
    if refused:
        with pytest.raises(StateError) as found:
            layout_of(learned(size), config)
        assert found.value.finding.is_any_of(FUSED_MOMENTUM)
    else:
        assert layout_of(learned(size), config).dtype == dtype
