"""Saves a replica as a checkpoint folder of FlowCheck's own format, whole or not at all.

step-N/model.safetensors       every parameter by name, in its shape, contiguous
step-N/optimizer.safetensors   "<parameter name>/<torch's state name>"; empty before the first step
step-N/beside.safetensors      frozen parameters and buffers, where a stated model has any
step-N/averages.safetensors    moving averages, where the trainer keeps any
step-N/masters.safetensors     what the optimizer steps in their place, where it does
step-N/manifest.json           what it is, all sums, and what is no tensor; written last
latest                         the name of the newest one

All is written into a temporary sibling, synced and renamed; then `latest` moves.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from flowcheck.atomic_write import atomic_path_per_process
from flowcheck.errors import ConfigError, StateError, naming_file
from flowcheck.findings.catalog.restored_state import RATE_UNKNOWN
from flowcheck.findings.catalog.unloadable_checkpoints import OTHER_RUN_HERE
from flowcheck.findings.finding import Finding
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint import frozen_and_buffers as besides
from flowcheck.replica.checkpoint.checkpoint_load import (
    AVERAGES,
    FROZEN_AND_BUFFERS,
    MASTERS,
    MODEL,
    OPTIMIZER,
    Checkpoint,
    load,
    snapshot_in,
    snapshot_of,
)
from flowcheck.replica.checkpoint.frozen_and_buffers import read_frozen_and_buffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot, snapshot_in_place
from flowcheck.replica.checkpoint.trainer_state import TrainerState, trainer_state
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.latest_pointer import latest_checkpoint, write_latest
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    CheckpointKind,
    Manifest,
    load_manifest,
    write_manifest,
)
from flowcheck.replica.checkpoint_files.non_tensor_state import to_json_value
from flowcheck.replica.checkpoint_files.safetensors_file import write_tensors
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import Commit
from flowcheck.replica.taint import read_taint

__all__ = ["Checkpoint", "load", "save", "save_trainer_state", "snapshot_in", "snapshot_of"]

SUFFIX = ".safetensors"
LEFTOVERS = ".step-*.tmp"
"""What a killed writer left: the step that comes next is another one."""


def save(
    replica: Replica,
    directory: Path,
    *,
    evidence: Sequence[Finding] = (),
    assumed: Sequence[Finding] = (),
) -> Path:
    """Writes `directory`/step-N and returns it. A checkpoint of the same bytes is left as it is;
    one of the same step that is damaged is written anew.

    Where elements of the step are tainted, the newest step that the replica holds without such is
    written as well, and `latest` names that one.

    Raises StateError where step-N is there with other content; OSError where there is no room.
    """
    exact = replica.newest_exact
    if exact is not None and exact.step and exact != replica.commit:
        _save(_in_place(replica, exact), directory, replica.layout, evidence, assumed)
    return _save(_in_place(replica, replica.commit), directory, replica.layout, evidence, assumed)


def _save(
    snapshot: Snapshot,
    directory: Path,
    layout: Layout,
    evidence: Sequence[Finding],
    assumed: Sequence[Finding],
) -> Path:
    try:
        whole = trainer_state(snapshot, evidence=tuple(evidence), assumed=tuple(assumed))
    except ConfigError as error:  # a state is kept also where its schedule cannot be had
        rule = msgspec.structs.replace(snapshot.optimizer, schedule=None)
        told = (*assumed, RATE_UNKNOWN(error))
        whole = trainer_state(
            replace(snapshot, optimizer=rule), evidence=tuple(evidence), assumed=told
        )
        whole = replace(whole, optimizer_config=snapshot.optimizer)
    return save_trainer_state(whole, directory, layout)


def save_trainer_state(step: TrainerState, directory: Path, layout: Layout) -> Path:
    """As `save`, of a step that was given; `latest` names it when it is on disk, unless it is
    tainted and `latest` names another."""
    final = directory / f"step-{step.step}"
    if not _is_there(step, final, layout):
        make_folder(directory)
        with (
            naming_file(final),
            atomic_path_per_process(final, leftovers=LEFTOVERS, folder=True) as place,
        ):
            write(step, place, layout)
            if final.exists():  # damaged: a folder takes the place of none but an empty one
                shutil.rmtree(final)
    if not step.tainted or latest_checkpoint(directory) is None:
        write_latest(directory, final.name)
    return final


def _is_there(step: TrainerState, final: Path, layout: Layout) -> bool:
    """Every byte of it. Raises StateError where something else is there."""
    if not final.exists():
        return False
    there = load_manifest(final)
    if (there.digest, there.layout) != (step.digest, layout):
        raise StateError(OTHER_RUN_HERE(final))
    return not verify_files(final, there)


def write(step: TrainerState, folder: Path, layout: Layout) -> Manifest:
    """The files of a step, each on disk, into an empty folder; the manifest last."""
    with ChecksummedWriter() as sums:
        more = write_files(step, folder, layout, sums)
        manifest = Manifest(
            step=step.step,
            digest=step.digest,
            torch_version=str(torch.__version__),
            kind=kind_of(step),
            older=step.older | step.frozen_and_buffers.older(step.step),
            tainted=step.tainted,
            files=sums.files(),
            tensors=sums.tensors(),
            evidence=step.evidence,
            assumed=step.assumed,
            **more,
        )
    write_manifest(folder / MANIFEST, manifest)
    return manifest


def kind_of(step: TrainerState) -> CheckpointKind:
    """As the manifest names it."""
    return CheckpointKind.PARAMETERS_ONLY if step.optimizer is None else CheckpointKind.FULL


def write_files(
    step: TrainerState, folder: Path, layout: Layout, sums: ChecksummedWriter
) -> dict[str, Any]:
    """The tensors of a step, each file on disk; what of the manifest is of this format alone."""
    states, odd = _tensors_of(step)
    write_tensors(folder / MODEL, step.model, sums, part="model/")
    write_tensors(folder / OPTIMIZER, states, sums, part="optimizer/")
    for name, held in ((AVERAGES, step.averages), (MASTERS, step.masters)):
        if held is not None:
            write_tensors(folder / name, held, sums, part=name.removesuffix(SUFFIX) + "/")
    if step.frozen_and_buffers.tensors:
        write_tensors(
            folder / FROZEN_AND_BUFFERS, step.frozen_and_buffers.tensors, sums, part="beside/"
        )
    auxiliary = (
        besides.to_json_dict(step.frozen_and_buffers) if step.frozen_and_buffers.keys else None
    )
    groups = None if step.optimizer is None else step.optimizer["param_groups"]
    rest = {"scheduler": step.scheduler, "scaler": step.scaler, "state": odd or None}
    rest["beside"] = auxiliary
    counts = {
        "averaged": step.average_updates or None,
        "taken": step.optimizer_steps if step.scaler else None,
    }
    several = step.several_optimizers and {
        "groups": list(step.several_optimizers.groups),
        "keys": list(step.several_optimizers.keys),
    }
    plain = {"param_groups": groups, "numbers": numbers_of(step), "several": several}
    plain |= {**rest, **counts}
    told = {k: to_json_value(v, k) for k, v in plain.items() if v is not None}
    return {"layout": layout, "optimizer": step.optimizer_config, "plain": told}


def numbers_of(step: TrainerState) -> dict[str, int]:
    """The optimizer's number of each parameter that is in one of its groups, by name."""
    order = step.order or range(len(step.model))
    return {name: n for name, n in zip(step.model, order, strict=True) if n >= 0}


def _tensors_of(
    step: TrainerState,
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


def _in_place(replica: Replica, commit: Commit) -> Snapshot:
    """A step over the replica's own memory: good until it takes the next."""
    return snapshot_in_place(
        commit,
        replica.description,
        replica.optimizer,
        replica.sections_of(commit),
        read_frozen_and_buffers(replica.path, commit.step),
        read_taint(replica.path, commit, replica.layout),
    )
