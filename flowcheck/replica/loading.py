"""A checkpoint's files as a step in memory: what checkpoint.py writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.replica.among import Among
from flowcheck.replica.files.check import Fault, check
from flowcheck.replica.files.expected import NOTHING, Expected
from flowcheck.replica.files.manifest import (
    MANIFEST,
    PARAMETERS_ONLY,
    Manifest,
    load_manifest,
)
from flowcheck.replica.files.plain import from_plain
from flowcheck.replica.files.tensorfile import read_tensors
from flowcheck.replica.kept import beside as besides
from flowcheck.replica.kept.beside import Beside
from flowcheck.replica.kept.snapshot import More, Snapshot
from flowcheck.replica.rules.building import build

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
BESIDE = "beside.safetensors"
AVERAGES = "averages.safetensors"
MASTERS = "masters.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory; tensors have the trainer's strides.

    states: per parameter in registration order, {torch's state name: tensor}; {} where torch has
    none (before its first step, or SGD without momentum).
    """

    manifest: Manifest
    parameters: dict[str, torch.Tensor]
    states: tuple[dict[str, Any], ...]
    more: More = field(default_factory=More)
    beside: Beside = besides.NOTHING
    expected: Expected = NOTHING
    """What the sums of its tensors are to be, of one that was loaded lazily."""

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """The module's state_dict, as far as it is known."""
        return self.beside.state_dict(self.parameters)

    def optimizer_state_dict(self) -> Any:
        """What `torch.optim.Optimizer.load_state_dict` takes; of several optimizers a list of
        those, or a dictionary by the script's keys. Raises StateError where there is none."""
        manifest, names = self.manifest, list(self.parameters)
        if manifest.kind == PARAMETERS_ONLY or manifest.optimizer is None:
            raise StateError(f"the checkpoint is of kind {PARAMETERS_ONLY!r}")
        groups = from_plain(manifest.plain.get("param_groups"))
        if groups is None:  # of format 1
            assert manifest.layout is not None
            built = build(manifest.optimizer, manifest.layout, list(self.parameters.values()))
            groups = built.optimizers[0].state_dict()["param_groups"]
        order = manifest.plain.get("numbers") or {name: n for n, name in enumerate(names)}
        own = dict(zip(names, self.states, strict=True))
        held = {order[name]: state for name, state in own.items() if state}
        found = {"state": dict(sorted(held.items())), "param_groups": groups}
        told = manifest.plain.get("several")
        return Among(tuple(told["groups"]), tuple(told["keys"])).parted(found) if told else found


def load(folder: Path, *, lazily: bool = False) -> Checkpoint:
    """The checkpoint in `folder`, its bytes checked against the manifest; lazily: those of tensors
    are left to whom reads them, with `Checkpoint.expected`.

    Raises StateError, which names the tensor, where something is missing, differs, or does not fit
    the layout.
    """
    manifest = load_manifest(folder)
    if manifest.layout is None:
        raise StateError(f"{folder}: is of form {manifest.form!r}, not a checkpoint of ours")
    later = manifest.tensors.keys() if lazily else ()
    _refuse(folder, check(folder, manifest, whole_files=False, later=later))
    if not {MODEL, OPTIMIZER} <= (manifest.files.keys() | manifest.sha256.keys()):
        raise StateError(f"{folder}: {MANIFEST} lacks a file: not the checkpoint that was written")
    values, kept = read_tensors(folder / MODEL), read_tensors(folder / OPTIMIZER)
    own = {p.name: p for p in manifest.layout.parameters}
    if values.keys() != own.keys():
        raise StateError(f"{folder}: {MODEL} does not hold the parameters of the layout")
    states: dict[str, dict[str, Any]] = {name: {} for name in own}
    for label, tensor in kept.items():
        name, _, kind = label.rpartition("/")
        if name not in own:
            raise StateError(f"{folder}: {OPTIMIZER} holds {label}, which is of no parameter")
        alike = tuple(tensor.shape) == own[name].shape
        states[name][kind] = _strided(tensor, own[name].stride) if alike else tensor
    for name, more in from_plain(manifest.plain.get("state") or {}).items():
        states[name].update(more)
    parameters = {name: _strided(values[name], p.stride) for name, p in own.items()}
    more_of, beside = _more(folder, manifest), _beside(folder, manifest)
    found = Checkpoint(manifest, parameters, tuple(states.values()), more_of, beside)
    return replace(found, expected=_expected(folder, found)) if lazily else found


def _refuse(folder: Path, faults: Sequence[Fault]) -> None:
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise StateError(f"{folder}: {faults[0]}{more}: not the checkpoint that was written")


def _expected(folder: Path, found: Checkpoint) -> Expected:
    """The sums of what was mapped; all else is checked in the files."""
    manifest = found.manifest
    named: dict[str, Any] = {f"model/{name}": value for name, value in found.parameters.items()}
    named |= {f"beside/{name}": value for name, value in found.beside.tensors.items()}
    for part, held in ((AVERAGES, found.more.averages), (MASTERS, found.more.masters)):
        of = part.removesuffix(".safetensors")
        named |= {f"{of}/{name}": value for name, value in (held or {}).items()}
    for name, state in zip(found.parameters, found.states, strict=True):
        named |= {f"optimizer/{name}/{kind}": value for kind, value in state.items()}
    sums = {
        (tensor.data_ptr(), tensor.nbytes): (label, manifest.tensors[label].sha256)
        for label, tensor in named.items()
        if label in manifest.tensors
        and isinstance(tensor, torch.Tensor)
        and tensor.nbytes
        and tensor.is_contiguous()
    }

    def rest(met: set[str]) -> None:
        if met != manifest.tensors.keys():
            _refuse(folder, check(folder, manifest, whole_files=False, later=met))

    return Expected(sums, str(folder), rest)


def snapshot_of(folder: Path) -> Snapshot:
    """The step a checkpoint folder holds. Raises StateError where it is not whole."""
    return snapshot_in(folder, load(folder))


def snapshot_in(folder: Path, kept: Checkpoint) -> Snapshot:
    """The step of a checkpoint that was loaded from there."""
    manifest = kept.manifest
    assert manifest.layout is not None
    if manifest.optimizer is None:
        raise StateError(f"{folder}: its manifest names no optimizer")
    return Snapshot(
        manifest.step,
        manifest.digest,
        manifest.layout,
        manifest.optimizer,
        kept.parameters,
        kept.states,
        {name: step for name, step in manifest.older.items() if name in kept.parameters},
        kept.more,
        kept.beside,
    )


def _beside(folder: Path, manifest: Manifest) -> Beside:
    told = manifest.plain.get("beside")
    if told is None:
        return besides.NOTHING
    tensors = read_tensors(folder / BESIDE) if BESIDE in manifest.files else {}
    return replace(besides.from_plain(told), tensors=tensors)


def _more(folder: Path, manifest: Manifest) -> More:
    def tensors(name: str) -> dict[str, torch.Tensor] | None:
        return read_tensors(folder / name) if name in manifest.files else None

    scaler = from_plain(manifest.plain.get("scaler"))
    numbers: dict[str, float] = {}
    if scaler is not None:
        taken = manifest.plain.get("taken", manifest.step)
        numbers = {
            "scale": scaler["scale"],
            "growth_tracker": scaler["_growth_tracker"],
            "skipped": manifest.step - taken,
        }
    averaged = manifest.plain.get("averaged", 0)
    return More(tensors(MASTERS), tensors(AVERAGES), averaged, numbers)


def _strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values with these strides, which torch's fused kernels take for granted."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
