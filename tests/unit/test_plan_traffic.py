"""What `plan` says DDP will ask of NCCL, against what torch's own DDP asks of a process group."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from support.refused_as import Like, Wanted, like, refused_as

from flowcheck.findings.catalog.refused_commands import (
    FACTORY_ARGUMENT,
    NO_GRADIENTS,
    NO_SHAPE_YET,
    NOT_A_TORCH_MODULE,
    SPARSE_MODULE,
    STATIC_GRAPH,
)
from flowcheck.findings.catalog.refused_user_code import FORM, NO_FILE, RAISED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    from support.ddp_calls import RANKS, Call, calls_of

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.plan_figures import REVERSE_ORDER
from flowcheck.ops.planning.ddp_collectives import DdpOptions, PlannedCollective, ddp_traffic
from flowcheck.ops.planning.meta_device_model import load_model

pytestmark = pytest.mark.filterwarnings("ignore")

WIDE, DEEP = 40, 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on a machine that others use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def dense(**_: Any) -> torch.nn.Module:
    layers = [torch.nn.Linear(WIDE, WIDE, bias=index % 2 == 0) for index in range(DEEP)]
    return torch.nn.Sequential(*layers)


def normed() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(WIDE, WIDE), torch.nn.BatchNorm1d(WIDE), torch.nn.Linear(WIDE, WIDE)
    )


def frozen() -> torch.nn.Module:
    net = dense()
    net[2].weight.requires_grad_(False)  # type: ignore[operator, union-attr]
    return net


class Tied(torch.nn.Module):
    """Two names of one tensor, a parameter without dimensions, and use out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(WIDE, WIDE)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.first = torch.nn.Linear(WIDE, WIDE)
        self.again = torch.nn.Linear(WIDE, WIDE)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(self.first(x)) * self.scale)  # type: ignore[no-any-return]


def tied() -> torch.nn.Module:
    return Tied()


class Mixed(torch.nn.Module):
    """Types in turns."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (torch.float32, torch.bfloat16, torch.float32, torch.float64, torch.bfloat16)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(WIDE, WIDE, dtype=k) for k in kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x.to(part.weight.dtype))
        return x


def mixed() -> torch.nn.Module:
    return Mixed()


def loss(module: torch.nn.Module) -> torch.Tensor:
    """Runs on the meta device too."""
    device = next(module.parameters()).device
    return module(torch.ones(4, WIDE, device=device)).float().sum()  # type: ignore[no-any-return]


def planned(one: PlannedCollective) -> Call:
    return str(one.kind), one.work_bytes * (RANKS if one.kind == "all_gather" else 1)


def calls_planned(factory: str, options: DdpOptions, iterations: int) -> list[Call]:
    model = load_model(f"{__file__}:{factory}", [], dtype=None, loss=f"{__file__}:loss")
    traffic = ddp_traffic(model, options)
    rounds = [*traffic.first, *[traffic.each] * iterations][:iterations]
    assert traffic.assumed == (), "a backward pass told the order"
    return [planned(one) for part in (traffic.start_up, *rounds) for one in part]


MODELS = {f.__name__: f for f in (dense, normed, frozen, tied, mixed)}
SETTINGS: dict[str, tuple[DdpOptions, dict[str, Any]]] = {
    "default": (DdpOptions(), {}),
    "small": (DdpOptions(cap_bytes=10_485), {"bucket_cap_mb": 0.01}),
    "find-unused": (
        DdpOptions(cap_bytes=10_485, find_unused_parameters=True),
        {"bucket_cap_mb": 0.01, "find_unused_parameters": True},
    ),
    "static": (
        DdpOptions(cap_bytes=10_485, static_graph=True),
        {"bucket_cap_mb": 0.01, "static_graph": True},
    ),
    "static-and-unused": (
        DdpOptions(cap_bytes=10_485, static_graph=True, find_unused_parameters=True),
        {"bucket_cap_mb": 0.01, "static_graph": True, "find_unused_parameters": True},
    ),
    "no-buffers": (DdpOptions(broadcast_buffers=False), {"broadcast_buffers": False}),
    "no-sync": (DdpOptions(accumulate=3), {"accumulate": 3}),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_torch_asks_for_what_is_planned(name: str, setting: str) -> None:
    options, words = SETTINGS[setting]
    torch.manual_seed(1)
    asked = calls_of(MODELS[name](), loss, iterations=4, **words)
    assert calls_planned(name, options, 4) == asked


def test_accumulation_without_no_sync_reduces_every_backward_pass() -> None:
    asked = calls_of(normed(), loss, iterations=2, accumulate=2, sync_each=True)
    options = DdpOptions(accumulate=2, sync_each=True)
    assert calls_planned("normed", options, 2 * options.iterations_per_step) == asked


def test_a_compression_hook_sends_two_bytes_an_element() -> None:
    asked = calls_of(dense(), loss, fp16_hook=True, bucket_cap_mb=0.01)
    assert calls_planned("dense", DdpOptions(cap_bytes=10_485, hook="fp16"), 3) == asked


@pytest.mark.parametrize("seed", range(20))
def test_buckets_are_those_of_torchs_own_assignment(seed: int, tmp_path: Any) -> None:
    """Without a backward pass: the reverse of the registration order, said to be assumed."""
    dice = random.Random(seed)
    sizes = [dice.choice((1, 7, 300, 4000, 90_000)) for _ in range(dice.randint(2, 30))]
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def make(sizes):\n"
        "    return torch.nn.ParameterList(torch.empty(n) for n in sizes)\n"
    )
    model = load_model(f"{file}:make", [f"sizes={sizes}"], dtype=None, loss=None)
    cap, first = dice.choice((5_000, 400_000)), dice.choice((1_000, 100_000))
    traffic = ddp_traffic(model, DdpOptions(cap_bytes=cap, first_cap_bytes=first))
    order = list(range(len(sizes)))[::-1]
    tensors = [torch.empty(sizes[index]) for index in order]
    found, _ = dist._compute_bucket_assignment_by_size(
        tensors, [first, cap], [False] * len(sizes), order
    )
    assert [one.work_bytes for one in traffic.each] == [
        4 * sum(sizes[index] for index in bucket) for bucket in found
    ]
    assert traffic.assumed == (REVERSE_ORDER(),)


def fails(error: str) -> Like:
    """The function that was named raised this."""
    return like(RAISED, error=re.compile(error))


@pytest.mark.parametrize(
    ("where", "words", "wanted"),
    [
        ("nowhere", [], FORM),
        ("absent.py:make", [], like(NO_FILE, path=re.compile(".*absent.py"))),
        ("torch.nn:Linear", ["in_features=3"], fails("out_features")),
        ("torch.nn:Linear", ["3"], FACTORY_ARGUMENT),
        ("torch.nn:Absent", [], fails("Absent")),
        ("torch.nn:ReLU", [], NO_GRADIENTS),
        ("torch.nn:LazyLinear", ["out_features=3"], NO_SHAPE_YET),
        (
            "torch.nn:Embedding",
            ["num_embeddings=3", "embedding_dim=2", "sparse=True"],
            SPARSE_MODULE,
        ),
        ("torch:ones", ["size=(3,)"], NOT_A_TORCH_MODULE),
    ],
)
def test_what_is_no_model_is_refused_in_a_sentence(
    where: str, words: list[str], wanted: Wanted
) -> None:
    with refused_as(wanted, kind=ConfigError):
        load_model(where, words, dtype=None, loss=None)


def test_static_graph_with_no_sync_is_what_torch_fails_on() -> None:
    with refused_as(STATIC_GRAPH, kind=ConfigError):
        DdpOptions(static_graph=True, accumulate=2)
    with pytest.raises(RuntimeError, match="expect_autograd_hooks_"):
        calls_of(dense(), loss, accumulate=2, static_graph=True)
