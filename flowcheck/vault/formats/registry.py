"""The formats by name, and how an output appears: whole, on disk, its manifest last."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from flowcheck.errors import ConfigError, StateError, naming
from flowcheck.replica.files.check import check
from flowcheck.replica.files.manifest import (
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
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.foreign import fitting
from flowcheck.vault.formats.parts import Options, Parts
from flowcheck.vault.formats.told import form_of
from flowcheck.vault.overwriting import Spared, taking_place
from flowcheck.whole import growing_apart, sync

Writer = Callable[[Parts, Path, Options, Sums], str]
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
        return importlib.import_module(f"flowcheck.vault.formats.{self.module}")


_ALL = (
    Format("flowcheck", "native", True, "safetensors and a JSON manifest"),
    Format("torch", "torchfile", False, "a file of torch.save"),
    Format("dcp", "dcp", True, "a torch.distributed.checkpoint folder, for any sharding"),
    Format("safetensors", "safetensorsfile", False, "parameters alone"),
    Format("huggingface", "huggingface", True, "a model folder of transformers"),
    Format("deepspeed", "deepspeed", True, "ZeRO's shards below a tag"),
    Format("megatron", "megatron", True, "Megatron-LM's iter_N/mp_rank_00, with --like"),
)
FORMATS = {one.name: one for one in _ALL}


def write(
    parts: Parts,
    path: Path,
    form: str,
    options: Options | None = None,
    *,
    force: bool = False,
    spared: Sequence[Spared] = (),
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
        naming(path),
        taking_place(path, force=force, folder=chosen.folder, spared=spared) as make_room,
        # On disk before the file has its name, and named behind it.
        nullcontext() if chosen.folder else growing_apart(manifest_beside(path)) as beside,
        growing_apart(path, folder=chosen.folder) as place,
        Sums(parts.expected, reads_back=True) as sums,  # ends before place goes
    ):
        sums.names[place.name] = path.name
        lacks = chosen.write(parts, place, options or Options(), sums)
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
    chosen = form or form_of(path)
    if chosen not in FORMATS:
        raise ConfigError("--format", chosen, f"is one of {', '.join(FORMATS)}")
    manifest = load_manifest(path) if path_of(path).is_file() else None
    if manifest is not None and chosen != "flowcheck":  # which checks itself
        faults = check(path if path.is_dir() else path.parent, manifest, whole_files=False)
        if faults:
            raise StateError(f"{path}: {faults[0]}: not what was written")
    with fitting(str(path)):
        return Read(FORMATS[chosen].read(path), chosen, manifest)


def _manifest(parts: Parts, form: str, sums: Sums, lacks: str) -> Manifest:
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
