"""Writes down what torch computes on this machine's GPU: steps of optimizers, norms, powers.

The numbers that go in are made from raw words of PCG64, the same on every machine and in every
release of numpy; what comes out goes to OUT/arithmetic.npz with sha256 digests of every step.

    python arithmetic.py OUT
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

SHAPES = [(), (1,), (7,), (250,), (33, 17), (3,), (1000,), (64, 31)]
"""Of the parameters stepped; their bits are kept at SNAPSHOTS."""
STEPS, SNAPSHOTS = 130, (1, 2, 7)
IMPLEMENTATIONS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
SGD = [
    {"lr": 1e-2},
    {"lr": 1e-2, "weight_decay": 0.1},
    {"lr": 1e-2, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    {"lr": 3e-2, "momentum": 0.8, "dampening": 0.3, "maximize": True},
]
ADAM = [
    {"lr": 1e-3},
    {"lr": 1e-3, "amsgrad": True},
    {"lr": 3e-2, "betas": (0.3, 0.95), "eps": 1e-6},
    {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)},
    {"lr": 1e-3, "weight_decay": 0.1, "maximize": True, "amsgrad": True},
    {"lr": 1e-3, "weight_decay": 0.1},
    {"lr": 1e-3, "weight_decay": 0.1, "amsgrad": True},
]
HALF = [("SGD", {"lr": 1e-2, "momentum": 0.9}), ("AdamW", {"lr": 1e-3, "weight_decay": 0.1})]
"""Stepped in bfloat16."""
MORE = [
    ("SGD", {"lr": 3e-2, "momentum": 0.8, "dampening": 0.3}),
    ("SGD", {"lr": 3e-2, "momentum": 0.8, "maximize": True}),
    ("SGD", {"lr": 3e-2, "momentum": 0.8, "nesterov": True, "maximize": True}),
    ("SGD", {"lr": 3e-2, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1}),
    ("Adam", {"lr": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 3e-2, "weight_decay": 0.1, "maximize": True}),
]
"""Settings that tell which of two makes the fused kernels add otherwise."""
OTHERS: dict[str, list[dict[str, Any]]] = {
    "RMSprop": [
        {"lr": 1e-3},
        {"lr": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 0.01},
    ],
    "Adagrad": [{"lr": 1e-2}, {"lr": 1e-2, "lr_decay": 0.1, "weight_decay": 0.01}],
    "Adadelta": [{}],
    "Adamax": [{}, {"weight_decay": 0.1}],
    "NAdam": [{}, {"weight_decay": 0.1}],
    "RAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "ASGD": [{}],
    "Rprop": [{}],
}
BETAS = (
    0.3,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.92,
    0.95,
    0.96,
    0.97,
    0.98,
    0.985,
    0.99,
    0.995,
    0.997,
    0.999,
    0.9995,
    0.9999,
    0.99995,
)
NUMELS = sorted({
    *range(1, 140), *range(140, 2100, 37), 2048, 4095, 4096, 4097, 8192, 10007, 16384, 32767, 32768,
    65535, 65536, 65537, 65540, 70001, 131072, 131075, 200000, 262144, 300001, 1000003, 3000000,
})  # fmt: skip
STACKS = (*range(1, 700), 1000, 1023, 1024, 1025, 2047, 2048, 2049, 3000, 4096, 5000, 8191, 20000)


def numbers(seed: int, count: int, low: int = 100, high: int = 130) -> np.ndarray:
    """[count] float32: any sign and mantissa, exponents from `low` to `high`; no zero, no NaN."""
    raw = np.random.PCG64(seed).random_raw(count)
    sign = (raw >> np.uint64(63)) << np.uint64(31)
    exponent = (np.uint64(low) + (raw >> np.uint64(23)) % np.uint64(high - low)) << np.uint64(23)
    return (sign | exponent | (raw & np.uint64(0x7FFFFF))).astype(np.uint32).view(np.float32)


def cut(flat: np.ndarray, device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    found, at = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape, dtype=int))
        found.append(torch.from_numpy(flat[at : at + size].copy()).reshape(shape).to(device, dtype))
        at += size
    return found


ELEMENTS = sum(int(np.prod(shape, dtype=int)) for shape in SHAPES)


def joined(tensors: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([t.detach().reshape(-1).to(torch.float32) for t in tensors]).cpu().numpy()


def steps_of(
    name: str, settings: dict[str, Any], device: str, keep: dict[str, Any], dtype: torch.dtype
) -> list[str]:
    parameters = [torch.nn.Parameter(p) for p in cut(numbers(1, ELEMENTS, 115, 128), device, dtype)]
    optimizer = getattr(torch.optim, name)(parameters, **settings)
    digests = []
    for step in range(1, STEPS + 1):
        made = cut(numbers(1000 + step, ELEMENTS, 104, 127), device, dtype)
        for p, g in zip(parameters, made, strict=True):
            p.grad = g
        optimizer.step()
        own = {"parameters": joined(parameters)}
        for key in optimizer.state[parameters[0]]:
            values = [optimizer.state[p][key] for p in parameters]
            if (
                torch.is_tensor(values[0])
                and values[0].shape == parameters[0].shape
                and key != "step"
            ):
                own[key] = joined(values)
        digests.append(hashlib.sha256(b"".join(a.tobytes() for a in own.values())).hexdigest())
        if step in SNAPSHOTS:
            keep.update({f"{step}.{key}": value for key, value in own.items()})
    return digests


def optimizers(device: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    told, arrays = {}, {}
    cases = [("SGD", s) for s in SGD] + [(n, s) for n in ("Adam", "AdamW") for s in ADAM]
    cases += [(n, s) for n, every in OTHERS.items() for s in every]
    every = [(*case, torch.float32) for case in cases]
    every += [(*case, torch.bfloat16) for case in HALF]
    every += [(*case, torch.float32) for case in MORE]
    for number, (how, chosen) in itertools.product(range(len(every)), IMPLEMENTATIONS.items()):
        name, settings, dtype = every[number]
        label = f"{name}-{how}-{number}"
        keep: dict[str, Any] = {}
        try:
            digests = steps_of(name, {**settings, **chosen}, device, keep, dtype)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            told[label] = {"refused": str(error)[:200]}
            continue
        told[label] = {
            "name": name,
            "dtype": str(dtype),
            "settings": {**settings, **chosen},
            "sha256": digests,
        }
        arrays.update({f"{label}.{key}": value for key, value in keep.items()})
    return told, arrays


def averages(device: str) -> dict[str, np.ndarray]:
    """Weights averaged with torch.optim.swa_utils: foreach lerp, and the equal average."""
    from torch.optim import swa_utils

    found = {}
    for how, function in (
        ("ema", swa_utils.get_ema_multi_avg_fn(0.999)),
        ("ema-far", swa_utils.get_ema_multi_avg_fn(0.3)),
        ("swa", swa_utils.get_swa_multi_avg_fn()),
    ):
        own = cut(numbers(1, ELEMENTS, 115, 128), device)
        for step in range(1, 11):
            new = cut(numbers(2000 + step, ELEMENTS, 115, 128), device)
            function(own, new, torch.tensor(step, device=device))
        found[f"average.{how}"] = joined(own)
    return found


def norms(device: str) -> dict[str, np.ndarray]:
    """Norms of one tensor by foreach and by vector_norm, at four places in memory; of stacks."""
    whole = torch.from_numpy(numbers(77, max(NUMELS) + 4, 100, 127)).to(device)
    found: dict[str, np.ndarray] = {}
    for shift in range(4):
        views = [whole[shift : shift + n] for n in NUMELS]
        each = torch.stack(torch._foreach_norm(views, 2.0))
        found[f"norm.foreach.{shift}"] = each.cpu().numpy()
        alone = torch.stack([torch.linalg.vector_norm(v, 2.0) for v in views])
        found[f"norm.alone.{shift}"] = alone.cpu().numpy()
    stacks = [torch.linalg.vector_norm(whole[:n].abs().clone(), 2.0) for n in STACKS]
    found["norm.stacks"] = torch.stack(stacks).cpu().numpy()
    return found


def clipped(device: str) -> dict[str, np.ndarray]:
    """clip_grad_norm_ of some models: norms, and the clipped gradients' digests."""
    found = {}
    for case, (count, limit) in enumerate(((3, 1.0), (50, 0.1), (300, 5.0), (700, 1e9))):
        sizes = [int(n) for n in numbers(50 + case, count).view(np.uint32) % 30000 + 1]
        flat, at, parameters = numbers(60 + case, sum(sizes), 100, 125), 0, []
        for size in sizes:
            p = torch.nn.Parameter(torch.zeros(size, device=device))
            p.grad = torch.from_numpy(flat[at : at + size].copy()).to(device)
            parameters.append(p)
            at += size
        own = [p.grad.clone() for p in parameters]
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        found[f"clip.{case}.norm"] = norm.cpu().numpy()
        again = [torch.nn.Parameter(torch.zeros_like(g)) for g in own]
        for p, g in zip(again, own, strict=True):
            p.grad = g
        alone = torch.nn.utils.clip_grad_norm_(again, limit, foreach=False)
        found[f"clip.{case}.alone"] = alone.cpu().numpy()
        seen = joined([p.grad for p in parameters]).tobytes()
        found[f"clip.{case}.sha256"] = np.frombuffer(hashlib.sha256(seen).digest(), np.uint8)
    return found


def powers(device: str) -> dict[str, np.ndarray]:
    """Where powf(beta, step) on the GPU is not the power rounded once: [n] steps and float32."""
    import cupy

    kernel = cupy.RawKernel(
        'extern "C" __global__ void f(float b, float *to, int n)'
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x;"
        "  if (i < n) to[i] = powf(b, (float)(i + 1)); }",
        "f",
    )
    found = {}
    for beta in BETAS:
        base = np.float32(beta)
        count = min(int(np.ceil(-27 * np.log(2) / np.log(float(base)))), 600_000)
        to = cupy.zeros(count, cupy.float32)
        kernel(((count + 255) // 256,), (256,), (base, to, np.int32(count)))
        got = to.get()
        rounded = (float(base) ** np.arange(1, count + 1, dtype=np.float64)).astype(np.float32)
        other = np.flatnonzero(got != rounded)
        found[f"power.{beta}.steps"] = (other + 1).astype(np.int32)
        found[f"power.{beta}.values"] = got[other]
        found[f"power.{beta}.fused"] = fused_powers(base, min(count, 4_000), got, device)
    return found


def fused_powers(base: np.float32, count: int, got: np.ndarray, device: str) -> np.ndarray:
    """Steps where the fused kernel's lr / (1 - beta1 ** step) is not that of powf."""

    def ones(value: float) -> list[torch.Tensor]:
        return list(torch.full((count,), value, device=device).split(1))

    p, g, m, v = ones(0.0), ones(1.0), ones(1.0), ones(1.0)
    steps = [s.reshape(()) for s in torch.arange(1.0, count + 1, device=device).split(1)]
    torch._fused_adam_(
        p, g, m, v, [], steps, lr=1.0, beta1=float(base), beta2=0.0, weight_decay=0.0, eps=0.0,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    moment = joined(m)
    expected = np.float32(0) - np.float32(1) / (np.float32(1) - got[:count]) * moment
    return np.flatnonzero(joined(p) != expected).astype(np.int32) + 1


def main() -> int:
    out, device, began = Path(sys.argv[1]), "cuda", time.monotonic()
    about: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "gpu": torch.cuda.get_device_name(0),
    }
    told, arrays = optimizers(device)
    print(f"optimizers after {time.monotonic() - began:.1f} s", flush=True)
    for part in (averages, norms, clipped, powers):
        try:
            arrays.update(part(device))
        except Exception as error:
            about[part.__name__] = repr(error)
        print(f"{part.__name__} after {time.monotonic() - began:.1f} s", flush=True)
    np.savez_compressed(out / "arithmetic.npz", **arrays)
    (out / "arithmetic.json").write_text(json.dumps({"about": about, "steps": told}, indent=0))
    print(json.dumps(about))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
