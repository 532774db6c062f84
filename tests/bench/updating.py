"""Update: one optimizer step on the whole state, and what keeping it safe adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from bench.measure import Figure, Scale, memory, wall_seconds
from flowcheck.config import OptimizerConfig
from flowcheck.replica.kept.digest import tensor_digests
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica

TARGET = 0.90
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-4)


def layout(scale: Scale) -> Layout:
    """Square matrices with biases between: 16 or 64 million elements in all."""
    return Layout.of_shapes([(1024, 1024), (1024,)] * (16 if scale.quick else 48))


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    shape = layout(scale)
    elements = shape.elements
    torch.manual_seed(0)
    gradient = torch.randn(elements)
    stage = f"update AdamW, {elements / 1e6:.0f} M"
    fused = wall_seconds(_torch([torch.randn(elements)], gradient, "fused"), scale.repeats)
    rate = elements / 1e6

    def figure(what: str, taken: float, target: float | None = None, note: str = "") -> Figure:
        against = "fused, flat"
        return Figure(
            stage, what, rate / taken, "M elements/s", fused / taken, against, target, note
        )

    yield figure("torch fused, one flat tensor", fused, note=f"{fused * 1e3:.0f} ms a step")
    for name in ("foreach", "loop"):
        tensors = [torch.randn(p.shape) for p in shape.parameters]
        taken = wall_seconds(_torch(tensors, gradient, name), scale.repeats)
        yield figure(f"torch {name}, {len(tensors)} tensors", taken)
    yield from _replica(scale, shape, gradient, figure)


def _torch(tensors: list[torch.Tensor], gradient: torch.Tensor, name: str) -> Callable[[], object]:
    """A step of torch's own AdamW over `tensors`."""
    at = 0
    for tensor in tensors:
        tensor.grad = gradient[at : at + tensor.numel()].view(tensor.shape)
        at += tensor.numel()
    kinds = {"foreach": name == "foreach", "fused": name == "fused"}
    return torch.optim.AdamW(tensors, lr=1e-4, **kinds).step


def _replica(
    scale: Scale, shape: Layout, gradient: torch.Tensor, figure: Callable[..., Figure]
) -> Iterator[Figure]:
    values = torch.randn(shape.elements).numpy()
    with memory(shape.size_bytes * 8) as folder:
        replica = Replica.create(folder / "replica", shape, ADAMW, values)
        content = gradient.numpy()
        taken = wall_seconds(lambda: replica.apply(replica.step + 1, content), scale.repeats)
        yield figure(
            "Replica.apply, loop arithmetic", taken, TARGET, f"{taken * 1e3:.0f} ms a step"
        )
        sections = {name: array.copy() for name, array in replica.sections().items()}
        replica.close()
    others = {name: torch.from_numpy(array.copy()) for name, array in sections.items()}

    def copy() -> None:
        for name, array in sections.items():
            others[name].copy_(torch.from_numpy(array))

    copied = wall_seconds(copy, scale.repeats)
    yield figure("  of it: new state beside the old", copied, note=f"{copied * 1e3:.0f} ms")
    digested = wall_seconds(lambda: tensor_digests(sections.values()), scale.repeats)
    yield figure("  of it: digest, one thread", digested, note=f"{digested * 1e3:.0f} ms")
