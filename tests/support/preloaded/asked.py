"""Which commands can be forked: those whose process is made as this one's, and which would load
the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

READ_WHEN_LOADED = (
    b"PYTHON", b"LD_", b"GLIBC_", b"MALLOC_", b"LC_", b"LANG", b"OMP_", b"GOMP_", b"KMP_",
    b"MKL_", b"OPENBLAS_", b"NUMEXPR_", b"NPY_", b"ATEN_", b"TORCH", b"PYTORCH", b"CUDA_",
    b"FLOWCHECK_HOOK", b"FLOWCHECK_LAB_", b"TERMINAL_", b"TYPER_", b"_TYPER_",
    b"GITHUB_ACTIONS", b"FORCE_COLOR", b"PY_COLORS", b"PYDANTIC_",
)  # fmt: skip
"""How variables begin that python and libraries read as they are loaded."""
READ_LATER = {b"TORCHINDUCTOR_CACHE_DIR"}
_own: dict[bytes, bytes] = {}


def as_bytes(environment: Mapping[Any, Any]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def read_when_loaded(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_WHEN_LOADED) and name not in READ_LATER
    }


def note_loaded() -> None:
    """What is loaded from here on is loaded with this process's environment."""
    _own.clear()
    _own.update(read_when_loaded(os.environb))


def may_differ(environment: Mapping[bytes, bytes]) -> bool:
    """Whether what is loaded is what a process with this environment would load."""
    return read_when_loaded(environment) == _own
