"""What torch computed on a GPU (tests/data/gpu), and the program that wrote it down, whose inputs
are the same numbers on every machine."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/data/gpu"


def _program() -> Any:
    name = "gpu_arithmetic"
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts/gpu/arithmetic.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PROGRAM = _program()
TOLD: dict[str, Any] = json.loads((FOLDER / "arithmetic.json").read_text())
"""`about`, and `steps`: {label: {"name", "settings"}}"""
with np.load(FOLDER / "arithmetic.npz") as _arrays:
    ARRAYS: dict[str, np.ndarray] = {name: _arrays[name] for name in _arrays.files}
"""Of a label's steps [130, 8] uint8: the first bytes of each step's sha256; the others as the
program has them, of averages their sha256."""


def settings_of(label: str) -> tuple[str, dict[str, Any]]:
    """(torch's class, its arguments)"""
    own = TOLD["steps"][label]
    return own["name"], {k: tuple(v) if k == "betas" else v for k, v in own["settings"].items()}


def first_other(label: str, digests: list[str]) -> int | None:
    """The first step at which sha256 digests, in hex, are not the GPU's; None: all are."""
    told = [bytes(own).hex() for own in ARRAYS[f"steps.{label}"]]
    assert len(told) == len(digests)
    pairs = zip(digests, told, strict=True)
    return next((step for step, (a, b) in enumerate(pairs, 1) if a[: len(b)] != b), None)
