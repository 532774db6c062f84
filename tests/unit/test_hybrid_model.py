"""Hybrid sharding: what torch's own groups are, in which order they are summed, what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from support.preloaded.probes import fork_probes
from support.refused_as import refused_as
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from flowcheck.config import JobConfig, PersistConfig, job_from
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    FROM_TO,
    MESH_RANKS,
    MODEL_BESIDE_MESH,
    OF_STYLES,
    ONE_SHARD_CLIPPED,
    ONE_SHARD_FORMAT,
    ONE_SHARD_NOT_PER_ELEMENT,
    SHARD_NOT_STATED,
    SUMS_DIVIDED_LATER,
)
from flowcheck.findings.catalog.refused_settings import NOT_STATED as MESH_NOT_STATED
from flowcheck.findings.catalog.refused_user_code import RAISED
from flowcheck.findings.finding import Entry
from flowcheck.ops.job_setup.hybrid_job_model import with_hybrid_model
from flowcheck.replica.sharding import sharded_model_probe
from flowcheck.replica.sharding.hybrid_probe import probe_hybrid_model, write_start_weights
from flowcheck.vault.trainer_checkpoint.shard_of_checkpoint import cut_to_shards
from flowcheck.wire.learn.trainer import grouped
from flowcheck.wire.training_job.learned_job import Parameter

NET = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed import get_world_size

def plain():
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 7), nn.LayerNorm(7), nn.Linear(7, 1))

def cut(shards, **policy):
    model, told = plain(), MixedPrecisionPolicy(**policy)
    shape = get_world_size() // shards, shards
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicas", "shards"))
    for layer in (model[0], model[1]):
        fully_shard(layer, mesh=mesh, mp_policy=told)
    return fully_shard(model, mesh=mesh, mp_policy=told)

def one():
    return cut(1)

def three():
    return cut(3)

def mixed():
    return cut(1, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def half():
    return cut(1, param_dtype=torch.bfloat16)

def risky():
    return cut(1, param_dtype=torch.float16)

def divided():
    model = cut(1)
    for module in (model, model[0], model[1]):
        module.set_force_sum_reduction_for_comms(True)
    return model

def narrow():
    mesh = init_device_mesh("cuda", (1, get_world_size()), mesh_dim_names=("replicas", "shards"))
    return fully_shard(plain(), mesh=mesh)

def bare():
    return plain()
"""


@pytest.fixture(autouse=True)
def probes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executed ones, each of which loads torch, are those of tests with a chain."""
    fork_probes(monkeypatch, sharded_model_probe)


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return str(tmp_path / "net.py")


def plain(seed: int) -> nn.Module:
    """The same model, whole, as anybody makes it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 7), nn.LayerNorm(7), nn.Linear(7, 1))


@pytest.mark.parametrize("shard", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_a_shard_is_what_torch_cuts(net: str, tmp_path: Path, shard: int) -> None:
    made = probe_hybrid_model(f"{net}:three", (2, 3), shard)
    assert made.groups == ((4, 5, 6, 7), (0, 1), (2, 3)) and made.reduce_dtype is None
    write_start_weights(f"{net}:three", (2, 3), shard, 11, tmp_path / "start.bin")
    config = with_hybrid_model(stated(f"{net}:three", mesh=[2, 3], shard=shard))
    trained = dict(plain(11).named_parameters())
    cut = cut_to_shards({"model": trained}, config.model.names, config.model.cuts)["model"]
    wanted, filled = b"", []
    for parameter, told in zip(plain(11).parameters(), made.parameters, strict=True):
        whole = parameter.detach()
        cuts = _chunk_with_empty(whole, 3, dim=0)
        own = cuts[shard] if shard < len(cuts) else whole[:0]
        own = own.reshape(-1, *whole.shape[1:])
        assert (told.shape, told.shard_shape) == (tuple(whole.shape), tuple(cuts[0].shape))
        assert told.own_shape == tuple(own.shape)
        assert torch.equal(cut[told.name], own)
        missing = cuts[0].shape[0] - own.shape[0]
        filled += [(missing, *whole.shape[1:])] if missing else []
        wanted += own.numpy().tobytes()
    assert (tmp_path / "start.bin").read_bytes() == wanted
    assert sorted(one.sizes for one in config.model.padding) == sorted(filled)


@pytest.mark.parametrize(
    ("factory", "reduced", "divisor"),
    [("mixed", None, 1.0), ("half", "bfloat16", 1.0), ("risky", "float16", 2.0)],
)
def test_types_and_divisors_are_those_of_torch(
    net: str, factory: str, reduced: str | None, divisor: float
) -> None:
    """Of four ranks, torch divides sums of float16 by two before and by two behind."""
    made = probe_hybrid_model(f"{net}:{factory}", (4, 1), 0)
    assert (made.reduce_dtype, made.divisor) == (reduced, divisor)
    assert {parameter.dtype for parameter in made.parameters} == {"float32"}


def stated(factory: str, optimizer: dict[str, object] | None = None, **more: object) -> JobConfig:
    tree: dict[str, object] = {
        "source": [{"interface": "eth1"}],
        "optimizer": {"name": "sgd", "learning_rate": 0.1, **(optimizer or {})},
        "sharded": {"style": "hsdp", "factory": factory, **more},
    }
    return job_from(tree)


@pytest.mark.parametrize(
    ("more", "entry", "arguments"),
    [
        ({}, MESH_NOT_STATED, {}),
        ({"mesh": [2, 2], "shard": 2}, FROM_TO, {"least": 0, "most": 1}),
        ({"mesh": [2, 2], "ranks": 3}, MESH_RANKS, {"ranks": 4}),
        ({"mesh": [2, 3]}, SHARD_NOT_STATED, {"shards": 3}),
        ({"mesh": [2, 1], "sums_per_step": 2}, OF_STYLES, {}),
    ],
)
def test_what_is_stated_wrongly_is_refused(
    more: dict[str, object], entry: Entry, arguments: dict[str, object]
) -> None:
    with refused_as(entry, kind=ConfigError, **arguments):
        stated("net.py:one", **more)


def test_a_mesh_of_another_style_is_refused() -> None:
    with refused_as(OF_STYLES, kind=ConfigError):
        job_from(
            {
                "source": [{"interface": "eth1"}],
                "sharded": {"factory": "net.py:one", "ranks": 2, "mesh": [2, 1]},
            }
        )


def test_what_cannot_be_followed_is_refused_by_name(net: str) -> None:
    with refused_as(SUMS_DIVIDED_LATER, kind=ConfigError, dtype="float16"):
        with_hybrid_model(stated(f"{net}:risky", mesh=[4, 1]))
    with refused_as(RAISED, kind=ConfigError, error=re.compile("over a mesh .1, 3.")):
        with_hybrid_model(stated(f"{net}:narrow", mesh=[3, 1]))
    with refused_as(RAISED, kind=ConfigError, error=re.compile("is not sharded")):
        with_hybrid_model(stated(f"{net}:bare", mesh=[2, 1]))


@pytest.mark.parametrize(
    ("entry", "optimizer", "persist"),
    [
        (ONE_SHARD_CLIPPED, {"clip_norm": 1.0}, "flowcheck"),
        (ONE_SHARD_NOT_PER_ELEMENT, {"name": "adafactor"}, "flowcheck"),
        (ONE_SHARD_FORMAT, {}, "dcp"),
    ],
)
def test_what_needs_all_shards_is_refused_of_one(
    net: str, entry: Entry, optimizer: dict[str, object], persist: str
) -> None:
    config = stated(f"{net}:three", optimizer, mesh=[2, 3], shard=1)
    saves = PersistConfig(target="saved", every_steps=1, format=persist)
    with refused_as(entry, kind=ConfigError):
        with_hybrid_model(msgspec.structs.replace(config, persist=saves))


def test_a_model_beside_is_refused(net: str) -> None:
    tree = {
        "source": [{"interface": "eth1"}],
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "model": {"dtype": "bfloat16"},
        "sharded": {"style": "hsdp", "factory": f"{net}:one", "mesh": [2, 1]},
    }
    with refused_as(MODEL_BESIDE_MESH, kind=ConfigError):
        with_hybrid_model(job_from(tree))


def test_sums_that_are_divided_behind_set_the_divisor(net: str) -> None:
    config = with_hybrid_model(stated(f"{net}:divided", mesh=[3, 1]))
    assert config.optimizer is not None and config.optimizer.gradient_divisor == 3.0


@dataclass(frozen=True)
class _Case:
    sizes: tuple[int, ...]
    """[group, in module order] bytes."""
    seen: tuple[frozenset[int], ...]
    order: tuple[int, ...] | None


def _only(*sizes: int) -> tuple[frozenset[int], ...]:
    return tuple(frozenset({size}) for size in sizes)


@pytest.mark.parametrize(
    "case",
    [
        _Case((8, 16, 24), _only(24, 8, 16), (2, 0, 1)),
        _Case((8, 16, 16, 16), _only(16, 16, 8, 16), (3, 2, 0, 1)),
        _Case((8, 16, 24), _only(24, 24, 16), None),
        _Case((8, 16, 24), (frozenset({24}), frozenset(), frozenset({8})), None),
        _Case((12, 16), (frozenset({12, 16}), frozenset({16})), None),
    ],
)
def test_groups_are_told_by_their_sizes_and_else_not(case: _Case) -> None:
    """torch sums groups of one size from the last one to the first; between them come the others
    in any order."""
    groups = [[Parameter(sizes=(size // 4,), strides=(1,), element_bytes=4)] for size in case.sizes]
    assert grouped._order(case.seen, groups) == case.order
