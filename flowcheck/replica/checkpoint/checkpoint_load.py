"""Loads a checkpoint folder that checkpoint_save wrote: checked files, tensors, and the
trainer's state as it was saved.

A step can be loaded as it was written: nothing is computed anew, so that none of the user's code
that its manifest names is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_damage import (
    NO_MANIFEST,
    NOT_AS_WRITTEN,
    SEVERAL_NOT_AS_WRITTEN,
)
from flowcheck.findings.catalog.unloadable_checkpoints import (
    CODE_WITHOUT_GROUPS,
    FILE_NOT_LISTED,
    NO_OPTIMIZER_NAMED,
    NO_OPTIMIZER_STATE,
    OTHER_FORM,
    OTHER_PARAMETERS,
    STATE_OF_NO_PARAMETER,
    UNNUMBERED_STATE,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint import frozen_and_buffers as besides
from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import OptionalState, Snapshot
from flowcheck.replica.checkpoint.trainer_state import SeveralOptimizers, TrainerState
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
    FileFault,
    verify_files,
)
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    CheckpointKind,
    Manifest,
    load_manifest,
)
from flowcheck.replica.checkpoint_files.non_tensor_state import (
    NonTensorState,
    decode_non_tensor_state,
)
from flowcheck.replica.checkpoint_files.safetensors_file import read_tensors
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.optimizer.user_code_trust import names_untrusted_code
from flowcheck.replica.param_layout import FlatParameter, Layout

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
FROZEN_AND_BUFFERS = "beside.safetensors"
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
    plain: NonTensorState = field(default_factory=NonTensorState)
    """What is no tensor."""
    more: OptionalState = field(default_factory=OptionalState)
    frozen_and_buffers: FrozenAndBuffers = besides.NO_FROZEN_OR_BUFFERS
    expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS
    """What the sums of its tensors are to be, of one that was loaded lazily."""

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """The module's state_dict, as far as it is known."""
        return self.frozen_and_buffers.state_dict(self.parameters)

    def optimizer_state_dict(self) -> Any:
        """What `torch.optim.Optimizer.load_state_dict` takes; of several optimizers a list of
        those, or a dictionary by the script's keys. Raises StateError where there is none."""
        manifest = self.manifest
        if manifest.kind is CheckpointKind.PARAMETERS_ONLY or manifest.optimizer is None:
            raise StateError(NO_OPTIMIZER_STATE())
        groups = self.plain.param_groups
        if groups is None:  # of format 1
            assert manifest.layout is not None
            built = build_optimizer(
                manifest.optimizer, manifest.layout, list(self.parameters.values())
            )
            groups = built.optimizers[0].state_dict()["param_groups"]
        found = {"state": self.numbered_states, "param_groups": groups}
        return (
            found
            if self.several_optimizers is None
            else self.several_optimizers.split_by_optimizer(found)
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The optimizer's number of each parameter that it has."""
        return self.plain.numbers or {name: n for n, name in enumerate(self.parameters)}

    @property
    def numbered_states(self) -> dict[int, dict[str, Any]]:
        """The states there are by the optimizer's numbers. Raises StateError where it numbers
        others."""
        own, order = dict(zip(self.parameters, self.states, strict=True)), self.numbers
        held = {name: state for name, state in own.items() if state}
        if strangers := held.keys() - order.keys():
            raise StateError(UNNUMBERED_STATE(min(strangers)))
        return dict(sorted((order[name], state) for name, state in held.items()))

    @property
    def several_optimizers(self) -> SeveralOptimizers | None:
        """Of several optimizers; None: of one."""
        told = self.plain.several
        return None if told is None else SeveralOptimizers(told.groups, told.keys)


def load(folder: Path, *, lazily: bool = False) -> Checkpoint:
    """The checkpoint in `folder`, its bytes checked against the manifest; lazily: those of tensors
    are left to whom reads them, with `Checkpoint.expected`.

    Raises StateError, which names the tensor, where something is missing, differs, or does not fit
    the layout.
    """
    manifest = load_manifest(folder)
    if manifest.layout is None:
        raise StateError(OTHER_FORM(folder=folder, form=repr(manifest.form)))
    own = _laid(folder, manifest.layout)
    plain = decode_non_tensor_state(manifest.plain, own, f"{folder}/{MANIFEST}")
    later = manifest.tensors.keys() if lazily else ()
    _refuse(folder, verify_files(folder, manifest, whole_files=False, later=later))
    if not {MODEL, OPTIMIZER} <= (manifest.files.keys() | manifest.sha256.keys()):
        named = {"manifest": MANIFEST, "model": MODEL, "optimizer": OPTIMIZER}
        raise StateError(FILE_NOT_LISTED(folder=folder, **named))
    values, kept = read_tensors(folder / MODEL), read_tensors(folder / OPTIMIZER)
    _refuse_unlike(folder, values, manifest.layout)
    states: dict[str, dict[str, Any]] = {name: {} for name in own}
    for label, tensor in kept.items():
        name, _, kind = label.rpartition("/")
        if name not in own:
            raise StateError(STATE_OF_NO_PARAMETER(folder=folder, file=OPTIMIZER, label=label))
        alike = tuple(tensor.shape) == own[name].shape
        states[name][kind] = _strided(tensor, own[name].stride) if alike else tensor
    for name, more in plain.state.items():
        states[name].update(more)
    parameters = {name: _strided(values[name], p.stride) for name, p in own.items()}
    more_of, auxiliary = (
        _more(folder, manifest, plain),
        _frozen_and_buffers(folder, manifest, plain),
    )
    found = Checkpoint(manifest, parameters, tuple(states.values()), plain, more_of, auxiliary)
    return replace(found, expected=_expected(folder, found)) if lazily else found


def _refuse(folder: Path, faults: Sequence[FileFault]) -> None:
    if faults:
        fault, more = faults[0].finding, len(faults) - 1
        if not more:
            raise StateError(NOT_AS_WRITTEN(checkpoint=folder, fault=fault))
        raise StateError(SEVERAL_NOT_AS_WRITTEN(checkpoint=folder, fault=fault, more=more))


def _expected(folder: Path, found: Checkpoint) -> ExpectedChecksums:
    """The sums of what was mapped; all else is checked in the files."""
    manifest = found.manifest
    named: dict[str, Any] = {f"model/{name}": value for name, value in found.parameters.items()}
    named |= {f"beside/{name}": value for name, value in found.frozen_and_buffers.tensors.items()}
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
            _refuse(folder, verify_files(folder, manifest, whole_files=False, later=met))

    return ExpectedChecksums(sums, str(folder), rest)


def snapshot_of(folder: Path) -> Snapshot:
    """The step a checkpoint folder holds. Raises StateError where it is not whole."""
    return snapshot_in(folder, load(folder))


def snapshot_in(folder: Path, kept: Checkpoint) -> Snapshot:
    """The step of a checkpoint that was loaded from there."""
    manifest = kept.manifest
    assert manifest.layout is not None
    if manifest.optimizer is None:
        raise StateError(NO_OPTIMIZER_NAMED(folder))
    return Snapshot(
        manifest.step,
        manifest.digest,
        manifest.layout,
        manifest.optimizer,
        kept.parameters,
        kept.states,
        {name: step for name, step in manifest.older.items() if name in kept.parameters},
        manifest.tainted,
        kept.more,
        kept.frozen_and_buffers,
    )


def _laid(folder: Path, layout: Layout) -> dict[str, FlatParameter]:
    """Parameters by name. Raises StateError for a layout that none of ours is."""
    try:
        layout.check()
    except StateError as error:
        raise StateError(NO_MANIFEST(where=folder / MANIFEST, error=error)) from error
    return {p.name: p for p in layout.parameters}


def _refuse_unlike(folder: Path, values: Mapping[str, torch.Tensor], layout: Layout) -> None:
    """Raises StateError where tensors are not those that the layout tells of."""
    own = {p.name: (p.shape, layout.dtype_of(p)) for p in layout.parameters}
    held = {n: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in values.items()}
    if held != own:
        raise StateError(OTHER_PARAMETERS(folder=folder, file=MODEL))


def _frozen_and_buffers(
    folder: Path, manifest: Manifest, plain: NonTensorState
) -> FrozenAndBuffers:
    if plain.frozen_and_buffers is None:
        return besides.NO_FROZEN_OR_BUFFERS
    tensors = (
        read_tensors(folder / FROZEN_AND_BUFFERS) if FROZEN_AND_BUFFERS in manifest.files else {}
    )
    return FrozenAndBuffers(**msgspec.structs.asdict(plain.frozen_and_buffers), tensors=tensors)


def _more(folder: Path, manifest: Manifest, plain: NonTensorState) -> OptionalState:
    def tensors(name: str) -> dict[str, torch.Tensor] | None:
        return read_tensors(folder / name) if name in manifest.files else None

    numbers: dict[str, float] = {}
    if plain.scaler is not None:
        taken = manifest.step if plain.optimizer_steps is None else plain.optimizer_steps
        numbers = {
            "scale": plain.scaler["scale"],
            "growth_tracker": plain.scaler["_growth_tracker"],
            "skipped": manifest.step - taken,
        }
    return OptionalState(tensors(MASTERS), tensors(AVERAGES), plain.averaged, numbers)


def _strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values with these strides, which torch's fused kernels take for granted."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def trainer_state_as_saved(
    kept: Checkpoint, taken: Snapshot, assumed: tuple[Finding, ...]
) -> TrainerState | None:
    """The step that `kept` is of; None where its rule names no code but what is stated here, and
    can be worked out. taken: the same step. Raises StateError where it was not written with its
    optimizer's groups."""
    config, plain = taken.optimizer, kept.plain
    if taken.parameters_only or not names_untrusted_code(config):
        return None
    if plain.param_groups is None:
        raise StateError(CODE_WITHOUT_GROUPS())
    numbers = kept.numbers
    return TrainerState(
        step=taken.step,
        digest=taken.digest,
        optimizer_config=config,
        model=dict(taken.parameters),
        optimizer={"state": kept.numbered_states, "param_groups": plain.param_groups},
        order=tuple(numbers.get(name, -1) for name in taken.parameters),
        several_optimizers=kept.several_optimizers,
        scheduler=plain.scheduler,
        scaler=plain.scaler,
        masters=taken.optional_state.masters,
        averages=taken.optional_state.averages,
        average_updates=taken.optional_state.average_updates,
        optimizer_steps=taken.step - taken.optional_state.skipped,
        older=taken.older,
        tainted=taken.tainted,
        frozen_and_buffers=taken.frozen_and_buffers,
        assumed=assumed,
    )
