"""A replica as files: a folder that is there whole, or not there.

step-N/model.safetensors       every parameter by name, in its shape, contiguous
step-N/optimizer.safetensors   "<parameter name>/<torch's state name>"; empty before the first step
step-N/manifest.json           what it is, the sha256 of both; written last

All is written into a temporary sibling, synced, read back, and renamed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError, naming
from flowcheck.replica.kept.digest import sha256_file
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.placed import older
from flowcheck.whole import growing_apart, sync

FORMAT = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
MANIFEST = "manifest.json"
LEFTOVERS = ".step-*.tmp"
"""What a killed writer left: the step that comes next is another one."""
FULL = "parameters and optimizer state"
PARAMETERS_ONLY = "parameters, no optimizer state"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a checkpoint is and what it rests on."""

    format: int
    step: int
    digest: str
    """`Replica.digest` of this step, see digest.py."""
    torch_version: str
    """Whose arithmetic took the steps."""
    kind: str = FULL
    older: dict[str, int] = {}
    """Parameters that are of another step than `step`, and which."""
    layout: Layout
    optimizer: OptimizerConfig
    sha256: dict[str, str]
    """File name to sha256 of its content."""
    evidence: tuple[str, ...] = ()
    """What was seen on the wire that the caller rests on."""
    assumed: tuple[str, ...] = ()
    """What no observation could have contradicted."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory; tensors have the trainer's strides.

    states: per parameter in registration order, {torch's state name: tensor}; {} where torch has
    none (before its first step, or SGD without momentum).
    """

    manifest: Manifest
    parameters: dict[str, torch.Tensor]
    states: tuple[dict[str, torch.Tensor], ...]

    def optimizer_state_dict(self) -> dict[str, Any]:
        """What `torch.optim.Optimizer.load_state_dict` takes, for one group in this order. Raises
        StateError where there is none."""
        if self.manifest.kind == PARAMETERS_ONLY:
            raise StateError(f"the checkpoint is of kind {PARAMETERS_ONLY!r}")
        built = optimizers.build(self.manifest.optimizer, list(self.parameters.values()))
        groups = built.state_dict()["param_groups"]
        return {
            "state": {index: state for index, state in enumerate(self.states) if state},
            "param_groups": groups,
        }


def save(
    replica: Replica,
    directory: Path,
    *,
    evidence: Sequence[str] = (),
    assumed: Sequence[str] = (),
) -> Path:
    """Writes `directory`/step-N and returns it. A checkpoint of the same bytes is left as it is.

    Raises StateError where step-N is there with other content, or what was written does not read
    back; OSError where there is no room.
    """
    final = directory / f"step-{replica.step}"
    if final.exists():
        there = load_manifest(final)
        if (there.digest, there.layout) == (replica.digest, replica.layout):
            return final
        raise StateError(
            f"{final}: a checkpoint of another run is already here; name another --out"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with naming(final), growing_apart(final, leftovers=LEFTOVERS, folder=True) as place:
        _write(replica, place, tuple(evidence), tuple(assumed))
        _check_back(replica, place)
    return final


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises StateError where there is none or it is not ours."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise StateError(f"{folder}: no whole checkpoint: {MANIFEST}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateError(f"{path}: not a manifest of ours: {error}") from error
    if manifest.format != FORMAT:
        raise StateError(f"{path}: format {manifest.format}, this program reads {FORMAT}")
    return manifest


def load(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, its files checked against the manifest.

    Raises StateError where a file is missing, differs, or does not fit the layout.
    """
    manifest = load_manifest(folder)
    for name in (MODEL, OPTIMIZER):
        path = folder / name
        if not path.is_file() or sha256_file(path) != manifest.sha256.get(name):
            raise StateError(f"{path}: missing, or not the file that {MANIFEST} speaks of")
    values, kept = load_file(folder / MODEL), load_file(folder / OPTIMIZER)
    if values.keys() != {p.name for p in manifest.layout.parameters}:
        raise StateError(f"{folder}: {MODEL} does not hold the parameters of the layout")
    parameters, states = {}, []
    for p in manifest.layout.parameters:
        parameters[p.name] = _strided(values[p.name], p.stride)
        prefix = p.name + "/"
        state = {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}
        states.append({k: v if v.dim() == 0 else _strided(v, p.stride) for k, v in state.items()})
    return Checkpoint(manifest, parameters, tuple(states))


def _write(
    replica: Replica, folder: Path, evidence: tuple[str, ...], assumed: tuple[str, ...]
) -> None:
    values: dict[str, torch.Tensor] = {}
    states: dict[str, torch.Tensor] = {}
    for name, tensors in replica.tensors().items():
        for kind, tensor in tensors.items():
            if kind == "value":
                values[name] = tensor.contiguous()
            else:
                states[f"{name}/{kind}"] = tensor.contiguous()
    for path, held in ((folder / MODEL, values), (folder / OPTIMIZER, states)):
        with writing(path):
            save_file(held, path, metadata={"format": "pt"})
        sync(path)
    manifest = Manifest(
        format=FORMAT,
        step=replica.step,
        digest=replica.digest,
        torch_version=str(torch.__version__),
        kind=PARAMETERS_ONLY if replica.optimizer.name == "none" else FULL,
        older=older(replica.optimizer, replica.layout, replica.sections(), replica.step),
        layout=replica.layout,
        optimizer=replica.optimizer,
        sha256={name: sha256_file(folder / name) for name in (MODEL, OPTIMIZER)},
        evidence=evidence,
        assumed=assumed,
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (folder / MANIFEST).write_bytes(text + b"\n")
    sync(folder / MANIFEST)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """safetensors raises OSError where there is no room: by itself, it only names the number in its
    sentence."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def _check_back(replica: Replica, folder: Path) -> None:
    """Raises StateError unless what lies in `folder` is the replica, byte for byte."""
    read = load(folder)
    for (name, tensors), state in zip(replica.tensors().items(), read.states, strict=True):
        back = {"value": read.parameters[name], **state}
        same = back.keys() == tensors.keys() and all(
            _same_bytes(tensor, back[kind]) for kind, tensor in tensors.items()
        )
        if not same:
            raise StateError(f"{folder}: {name} does not read back as it was written")


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit equality: NaNs equal themselves, 0.0 is not -0.0."""
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.shape == other.shape and torch.equal(raw[0], raw[1])


def _strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values with these strides, which torch's fused kernels take for granted."""
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
