"""Parameters out of gathered units, against torch's own cutting."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.preloaded.probes import fork_probes
from support.refused_as import refused_as
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.parameter_layouts import GATHER_RANKS, GATHER_UNITS
from flowcheck.findings.catalog.refused_user_code import MODEL_NOT_A_MODULE, RAISED
from flowcheck.replica.sharding import sharded_model_probe
from flowcheck.replica.sharding.gather_units import (
    GatherUnit,
    ShardedModel,
    UnitParameter,
    flat_units,
    model_units,
)
from flowcheck.replica.sharding.sharded_model_probe import check_is_module, probe_sharded_model


@pytest.fixture(autouse=True)
def probes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_probes(monkeypatch, sharded_model_probe)


def unit_of(name: str, tensors: dict[str, torch.Tensor], ranks: int) -> tuple[GatherUnit, bytes]:
    """(as a model says it, what is gathered): each tensor cut along dimension 0 by torch."""
    blocks = [b""] * ranks
    pieces = []
    for key, tensor in tensors.items():
        cuts = _chunk_with_empty(tensor, ranks, dim=0)
        room = cuts[0].shape
        pieces.append(
            UnitParameter(
                name=key,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                start_byte=len(blocks[0]),
                dim=0,
                shard_shape=tuple(room),
            )
        )
        for rank, cut in enumerate(cuts):
            padded = torch.full(room, 7.0, dtype=tensor.dtype)
            if cut.numel():
                padded[: cut.shape[0]] = cut
            blocks[rank] += padded.view(torch.uint8).numpy().tobytes()
    unit = GatherUnit(name=name, block_bytes=len(blocks[0]), pieces=tuple(pieces))
    return unit, b"".join(blocks)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_every_parameter_comes_back_bit_for_bit(ranks: int) -> None:
    torch.manual_seed(ranks)
    layers = [
        {"0.weight": torch.randn(7, 5), "0.bias": torch.randn(7)},
        {"1.weight": torch.randn(3, 4, 2).bfloat16(), "1.scale": torch.randn(9)},
        {"2.weight": torch.randn(1, 11), "2.bias": torch.randn(16)},
    ]
    made = [unit_of(str(n), layer, ranks) for n, layer in enumerate(layers)]
    everything = {name: tensor for layer in layers for name, tensor in layer.items()}
    model = ShardedModel(
        ranks=ranks, units=tuple(unit for unit, _ in made), names=tuple(everything)
    )
    on_wire = [made[n] for n in (2, 0, 1)]
    sizes = [len(gathered) for _, gathered in on_wire]
    placing, _ = model_units(sizes, ranks, model)
    gathered = np.frombuffer(b"".join(data for _, data in on_wire), np.uint8)
    found = placing.parameters(gathered).tobytes()
    assert found == b"".join(t.view(torch.uint8).numpy().tobytes() for t in everything.values())
    short = placing.complete_parameters([(sizes[0] + 1, sizes[0] + 2)])
    assert list(short) == [not name.startswith("0.") for name in everything]
    assert placing.complete_parameters([(0, sizes[0])]).tolist() == [
        n[0] != "2" for n in everything
    ]


def test_a_model_that_is_cut_otherwise_is_refused() -> None:
    unit, gathered = unit_of("0", {"w": torch.randn(8, 4)}, 2)
    model = ShardedModel(ranks=2, units=(unit,), names=("w",))
    with refused_as(GATHER_RANKS, ranks=4):
        model_units([len(gathered)], 4, model)
    with refused_as(GATHER_UNITS, wire=("136",)):
        model_units([len(gathered) + 8], 2, model)


def test_units_without_a_model_are_flat() -> None:
    placing = flat_units([16, 24], 2, "bfloat16")
    assert [(p.name, p.shape) for p in placing.layout.parameters] == [
        ("unit.0", (8,)),
        ("unit.1", (12,)),
    ]
    with pytest.raises(StateError):
        flat_units([18], 2, "float32")


@pytest.mark.nightly
def test_torch_itself_says_how_a_model_is_cut(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
        "def make():\n"
        "    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))\n"
        "    fully_shard(model[0], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))\n"
        "    return fully_shard(model)\n"
        "def bare():\n"
        "    return nn.Linear(5, 7)\n"
    )
    found = probe_sharded_model(f"{tmp_path / 'net.py'}:make", 3)
    assert found.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert [(u.name, u.block_bytes) for u in found.units] == [("", 2 * 3 * 4), ("0", 3 * 6 * 2)]
    weight = found.units[1].pieces[0]
    assert (weight.shard_shape, weight.dtype, weight.dim) == ((3, 5), "bfloat16", 0)
    with refused_as(
        RAISED, kind=ConfigError, error=re.compile("Linear that is not sharded: call fully_shard")
    ):
        probe_sharded_model(f"{tmp_path / 'net.py'}:bare", 3)


@pytest.mark.parametrize("made", [None, [1], nn.Linear])
def test_a_factory_that_gives_no_module_is_told_what_it_gave(made: object) -> None:
    with refused_as(
        MODEL_NOT_A_MODULE, kind=ConfigError, value=repr("net.py:make"), type=type(made).__name__
    ):
        check_is_module("net.py:make", made)
