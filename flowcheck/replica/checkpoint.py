"""A replica as files: a folder that is there whole, or not there.

step-N/model.safetensors       every parameter by name, in its shape, contiguous
step-N/optimizer.safetensors   "<parameter name>/<torch's state name>"; empty before the first step
step-N/averages.safetensors    moving averages, where the trainer keeps any
step-N/manifest.json           what it is, all sums, and what is no tensor; written last
latest                         the name of the newest one

All is written into a temporary sibling, synced and renamed; then `latest` moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from flowcheck.errors import ConfigError, StateError, naming
from flowcheck.replica.files.check import check
from flowcheck.replica.files.latest import point
from flowcheck.replica.files.manifest import (
    FULL,
    MANIFEST,
    PARAMETERS_ONLY,
    Manifest,
    load_manifest,
    write_manifest,
)
from flowcheck.replica.files.plain import from_plain, to_plain
from flowcheck.replica.files.sums import Known, Sums
from flowcheck.replica.files.tensorfile import read_tensors, write_tensors
from flowcheck.replica.given import Given, given
from flowcheck.replica.kept.snapshot import Snapshot, in_place
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.replica.rules.building import build
from flowcheck.whole import growing_apart

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
AVERAGES = "averages.safetensors"
LEFTOVERS = ".step-*.tmp"
"""What a killed writer left: the step that comes next is another one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory; tensors have the trainer's strides.

    states: per parameter in registration order, {torch's state name: tensor}; {} where torch has
    none (before its first step, or SGD without momentum).
    """

    manifest: Manifest
    parameters: dict[str, torch.Tensor]
    states: tuple[dict[str, Any], ...]
    averages: dict[str, torch.Tensor] | None = None

    @property
    def known(self) -> Known:
        """Sums of its tensors, which were checked."""
        named = {f"model/{name}": value for name, value in self.parameters.items()}
        for name, state in zip(self.parameters, self.states, strict=True):
            named |= {f"optimizer/{name}/{kind}": value for kind, value in state.items()}
        return {
            (tensor.data_ptr(), tensor.nbytes): self.manifest.tensors[label].sha256
            for label, tensor in named.items()
            if label in self.manifest.tensors
            and isinstance(tensor, torch.Tensor)
            and tensor.is_contiguous()
        }

    def optimizer_state_dict(self) -> dict[str, Any]:
        """What `torch.optim.Optimizer.load_state_dict` takes. Raises StateError where there is
        none."""
        manifest, names = self.manifest, list(self.parameters)
        if manifest.kind == PARAMETERS_ONLY or manifest.optimizer is None:
            raise StateError(f"the checkpoint is of kind {PARAMETERS_ONLY!r}")
        groups = from_plain(manifest.plain.get("param_groups"))
        if groups is None:  # of format 1
            assert manifest.layout is not None
            built = build(manifest.optimizer, manifest.layout, list(self.parameters.values()))
            groups = built.optimizer.state_dict()["param_groups"]
        order = manifest.plain.get("numbers") or {name: n for n, name in enumerate(names)}
        own = dict(zip(names, self.states, strict=True))
        held = {order[name]: state for name, state in own.items() if state}
        return {"state": dict(sorted(held.items())), "param_groups": groups}


def save(
    replica: Replica,
    directory: Path,
    *,
    evidence: Sequence[str] = (),
    assumed: Sequence[str] = (),
) -> Path:
    """Writes `directory`/step-N and returns it. A checkpoint of the same bytes is left as it is.

    Raises StateError where step-N is there with other content; OSError where there is no room.
    """
    snapshot = _in_place(replica)
    try:
        whole = given(snapshot, evidence=tuple(evidence), assumed=tuple(assumed))
    except ConfigError as error:  # a state is kept also where its schedule cannot be had
        rule = msgspec.structs.replace(snapshot.optimizer, schedule=None)
        told = (*assumed, f"the learning rate of the next step is not known: {error}")
        whole = given(replace(snapshot, optimizer=rule), evidence=tuple(evidence), assumed=told)
        whole = replace(whole, rule=snapshot.optimizer)
    return save_given(whole, directory, replica.layout)


def save_given(step: Given, directory: Path, layout: Layout) -> Path:
    """As `save`, of a step that was given; `latest` names it when it is on disk."""
    final = directory / f"step-{step.step}"
    if final.exists():
        there = load_manifest(final)
        if (there.digest, there.layout) != (step.digest, layout):
            raise StateError(
                f"{final}: a checkpoint of another run is already here; name another --out"
            )
    else:
        directory.mkdir(parents=True, exist_ok=True)
        with naming(final), growing_apart(final, leftovers=LEFTOVERS, folder=True) as place:
            write(step, place, layout)
    point(directory, final.name)
    return final


def write(step: Given, folder: Path, layout: Layout) -> Manifest:
    """The files of a step, each on disk, into an empty folder; the manifest last."""
    with Sums() as sums:
        more = write_files(step, folder, layout, sums)
        manifest = Manifest(
            step=step.step,
            digest=step.digest,
            torch_version=str(torch.__version__),
            kind=PARAMETERS_ONLY if step.optimizer is None else FULL,
            older=step.older,
            files=sums.files(),
            tensors=sums.tensors(),
            evidence=step.evidence,
            assumed=step.assumed,
            **more,
        )
    write_manifest(folder / MANIFEST, manifest)
    return manifest


def write_files(step: Given, folder: Path, layout: Layout, sums: Sums) -> dict[str, Any]:
    """The tensors of a step, each file on disk; what of the manifest is of this format alone."""
    states, odd = _tensors_of(step)
    write_tensors(folder / MODEL, step.model, sums, part="model/")
    write_tensors(folder / OPTIMIZER, states, sums, part="optimizer/")
    if step.averages is not None:
        write_tensors(folder / AVERAGES, step.averages, sums, part="averages/")
    groups = None if step.optimizer is None else step.optimizer["param_groups"]
    rest = {"scheduler": step.scheduler, "scaler": step.scaler, "state": odd or None}
    plain = {"param_groups": groups, "numbers": numbers_of(step), **rest}
    told = {k: to_plain(v, k) for k, v in plain.items() if v is not None}
    return {"layout": layout, "optimizer": step.rule, "plain": told}


def load(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, its bytes checked against the manifest.

    Raises StateError, which names the tensor, where something is missing, differs, or does not fit
    the layout.
    """
    manifest = load_manifest(folder)
    if manifest.layout is None:
        raise StateError(f"{folder}: is of form {manifest.form!r}, not a checkpoint of ours")
    faults = check(folder, manifest, whole_files=False)
    if faults or not {MODEL, OPTIMIZER} <= (manifest.files.keys() | manifest.sha256.keys()):
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        what = f"{faults[0]}{more}" if faults else f"{MANIFEST} lacks a file"
        raise StateError(f"{folder}: {what}: not the checkpoint that was written")
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
    averages = read_tensors(folder / AVERAGES) if AVERAGES in manifest.files else None
    return Checkpoint(manifest, parameters, tuple(states.values()), averages)


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
        manifest.older,
    )


def numbers_of(step: Given) -> dict[str, int]:
    """The optimizer's number of each parameter that is in one of its groups, by name."""
    order = step.order or range(len(step.model))
    return {name: n for name, n in zip(step.model, order, strict=True) if n >= 0}


def _tensors_of(
    step: Given,
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    """(the optimizer's tensors by "name/state", its other states by name)."""
    tensors: dict[str, torch.Tensor] = {}
    odd: dict[str, dict[str, Any]] = {}
    names = {number: name for name, number in numbers_of(step).items()}
    for number, states in ((step.optimizer or {}).get("state") or {}).items():
        for kind, value in states.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{names[number]}/{kind}"] = value
            else:
                odd.setdefault(names[number], {})[kind] = value
    return tensors, odd


def _in_place(replica: Replica) -> Snapshot:
    """The newest step over the replica's own memory: good until it takes the next."""
    return in_place(
        replica.commit, replica.description, replica.optimizer, dict(replica.sections())
    )


def _strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values with these strides, which torch's fused kernels take for granted."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
