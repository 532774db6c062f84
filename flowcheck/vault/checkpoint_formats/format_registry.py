"""The checkpoint formats by name; writes an output whole with its manifest last, reads one of
any format."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from flowcheck.atomic_write import atomic_path_per_process, sync
from flowcheck.errors import ConfigError, StateError, naming_file
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.manifest import (
    FULL,
    MANIFEST,
    PARAMETERS_ONLY,
    Manifest,
    encode_manifest,
    load_manifest,
    manifest_beside,
    path_of,
    write_manifest,
)
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, FormatOptions
from flowcheck.vault.checkpoint_formats.format_detection import detect_format
from flowcheck.vault.overwrite_guard import ProtectedPath, replacing_output
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors

Writer = Callable[[CheckpointContents, Path, FormatOptions, ChecksummedWriter], tuple[Finding, ...]]
"""Writes into an empty folder or a new file and syncs it; why it is no full resume."""
Reader = Callable[[Path], Any]
"""What is there as one nested dictionary, as torch.load would give it."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to keep a step. Its module has `write` and `read`."""

    name: str
    module: str
    folder: bool
    what: str

    @property
    def write(self) -> Writer:
        return cast(Writer, self._module.write)

    @property
    def read(self) -> Reader:
        return cast(Reader, self._module.read)

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"flowcheck.vault.checkpoint_formats.{self.module}")


_ALL = (
    Format("flowcheck", "native_format", True, "safetensors and a JSON manifest"),
    Format("torch", "torch_save_format", False, "a file of torch.save"),
    Format("dcp", "dcp_format", True, "a torch.distributed.checkpoint folder, for any sharding"),
    Format("safetensors", "safetensors_format", False, "parameters alone"),
    Format("huggingface", "huggingface_format", True, "a model folder of transformers"),
    Format("deepspeed", "deepspeed_format", True, "ZeRO's shards below a tag"),
    Format("megatron", "megatron_format", True, "Megatron-LM's iter_N/mp_rank_00, with --like"),
)
FORMATS = {one.name: one for one in _ALL}


def write(
    parts: CheckpointContents,
    path: Path,
    form: str,
    options: FormatOptions | None = None,
    *,
    force: bool = False,
    spared: Sequence[ProtectedPath] = (),
) -> Manifest:
    """Writes a step to `path`, a file or a folder, which is there whole and on disk, with its
    manifest, when this returns.

    Raises ConfigError for an unknown format, a `path` that is there (force: that no output may take
    the place of) or is near what is to be spared; StateError for what the format cannot hold,
    named; OSError where there is no room: there is nothing of it then.
    """
    chosen = FORMATS.get(form)
    if chosen is None:
        raise ConfigError("--format", form, f"is one of {', '.join(FORMATS)}")
    with (
        naming_file(path),
        replacing_output(path, force=force, folder=chosen.folder, spared=spared) as make_room,
        # On disk before the file has its name, and named behind it.
        nullcontext()
        if chosen.folder
        else atomic_path_per_process(manifest_beside(path)) as beside,
        atomic_path_per_process(path, folder=chosen.folder) as place,
        ChecksummedWriter(parts.expected, reads_back=True) as sums,  # ends before place goes
    ):
        sums.names[place.name] = path.name
        lacks = chosen.write(parts, place, options or FormatOptions(), sums)
        manifest = _manifest(parts, form, sums, lacks)
        if beside is not None:
            beside.write_bytes(encode_manifest(manifest))
        else:
            write_manifest(place / MANIFEST, manifest)
            for below in place.rglob("*/"):  # files are on disk already, their names are not
                sync(below)
        make_room()
    return manifest


@dataclass(frozen=True, slots=True)
class Read:
    """What lies somewhere, whoever wrote it."""

    tree: Any
    form: str
    manifest: Manifest | None
    """Of an output of ours; its bytes were held against it."""


def read(path: Path, form: str | None = None) -> Read:
    """A checkpoint of any format as one nested dictionary of tensors and plain values; no code in
    it is run. form: where it cannot be told.

    Raises StateError where it is none, is not whole (the tensor is named), or holds other than
    tensors and plain values.
    """
    chosen = form or detect_format(path)
    if chosen not in FORMATS:
        raise ConfigError("--format", chosen, f"is one of {', '.join(FORMATS)}")
    manifest = load_manifest(path) if path_of(path).is_file() else None
    if manifest is not None and chosen != "flowcheck":  # which checks itself
        faults = verify_files(path if path.is_dir() else path.parent, manifest, whole_files=False)
        if faults:
            raise StateError(f"{path}: {faults[0]}: not what was written")
    with structure_errors_as_state_errors(str(path)):
        return Read(FORMATS[chosen].read(path), chosen, manifest)


def _manifest(
    parts: CheckpointContents,
    form: str,
    sums: ChecksummedWriter,
    lacks: tuple[Finding, ...],
) -> Manifest:
    given = parts.given
    return Manifest(
        form=form,
        step=given.step,
        digest=given.digest,
        torch_version=str(torch.__version__),
        kind=PARAMETERS_ONLY if given.optimizer is None else FULL,
        lacks=lacks,
        older=parts.older,
        files=sums.files(),
        tensors=sums.tensors(),
        evidence=given.evidence,
        assumed=given.assumed,
        **sums.more,
    )
