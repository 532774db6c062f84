"""The table of checkpoint formats. The rest of the program knows a format only by its row here.

To add a format, add a module in this folder, a row in the table below, and a row in the README of
the vault. This module is pure data and does not import torch: a format's module is loaded when
something is written or read in the format.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_options as findings
from flowcheck.findings.catalog.megatron_checkpoints import NEEDS_LIKE

if TYPE_CHECKING:  # torch stays out
    from flowcheck.findings.finding import Finding
    from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
    from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents

PARTS = ("model", "optimizer", "scheduler", "scaler", "averages", "masters", "step")
"""The parts of a checkpoint. Each format has a place for some of them."""

SHARD_FORMATS = ("flowcheck", "torch", "safetensors")
"""Formats that may hold one shard of a model: nothing that loads them takes it for all of it."""


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The options of all formats. `CheckpointFormat.options` names the ones that a format takes.
    flag, unit: the command-line option, and its unit."""

    keys: Mapping[str, str] = field(default_factory=dict, metadata={"flag": "--keys"})
    """{part: its key in the written dictionary}; dots nest keys, and "" leaves the part out."""
    like: Path | None = None
    """An earlier checkpoint of the job, or a model's folder, from which names, buffers and other
    files are copied."""
    shard_bytes: int = field(
        default=5_000_000_000, metadata={"flag": "--shard-mb", "unit": 1_000_000}
    )
    """Most bytes of tensors per file; a single larger tensor has a file of its own."""
    ranks: int = field(default=1, metadata={"flag": "--ranks"})
    """Number of data-parallel ranks that will load the checkpoint."""
    stage: int = field(default=0, metadata={"flag": "--zero"})
    """ZeRO stage of the trainer that will load the checkpoint; 0: no ZeRO."""


NO_OPTIONS = FormatOptions()


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """A checkpoint format."""

    name: str
    module: str
    """Module with the functions `write` and `read`, and `recognizes` if the format can be
    recognised by its files. `.NAME`: a module of this folder."""
    folder: bool
    """True: an output is a folder. False: it is one file."""
    what: str
    """Description for users, a phrase."""
    options: tuple[str, ...] = ()
    """Fields of `FormatOptions` that the format takes. All formats also take `like`."""
    needs_like: Finding | None = None
    """Why the format needs `like`; None: it does not need `like`."""
    keeps_groups_of_like: bool = False
    """True: a trainer continues with the parameter groups of `like`, so that they must agree with
    the job file."""
    like_may_be_configuration: bool = False
    """True: `like` may be a model's folder with a config.json and no checkpoint."""
    reader_verifies: bool = False
    """True: `read` verifies the files against the manifest itself."""

    def write(
        self,
        contents: CheckpointContents,
        place: Path,
        options: FormatOptions,
        sums: ChecksummedWriter,
    ) -> tuple[Finding, ...]:
        """Writes a step into an empty folder or a new file. Returns why a trainer that resumes from
        it does not continue exactly as before; (): it does."""
        return tuple(self._loaded.write(contents, place, options, sums))

    def read(self, path: Path) -> Any:
        """A checkpoint as one nested dictionary, in the form that torch.load returns."""
        return self._loaded.read(path)

    def recognizes(self, path: Path) -> bool:
        """Whether a file or folder without a manifest of FlowCheck is in this format."""
        told = getattr(self._loaded, "recognizes", None)
        return told is not None and bool(told(path))

    @property
    def _loaded(self) -> Any:
        return importlib.import_module(self.module, __package__)


NATIVE_FORMAT = "flowcheck"
"""The format of checkpoints that FlowCheck writes where no other format is stated."""
_ROWS = (
    CheckpointFormat(
        NATIVE_FORMAT,
        ".native_format",
        True,
        "safetensors and a JSON manifest",
        reader_verifies=True,
    ),
    CheckpointFormat(
        "torch", ".torch_save_format", False, "a file of torch.save", options=("keys",)
    ),
    CheckpointFormat(
        "dcp", ".dcp_format", True, "a torch.distributed.checkpoint folder", options=("keys",)
    ),
    CheckpointFormat("safetensors", ".safetensors_format", False, "parameters alone"),
    CheckpointFormat(
        "deepspeed",
        ".deepspeed_format",
        True,
        "a DeepSpeed folder",
        options=("ranks", "stage"),
        keeps_groups_of_like=True,
    ),
    CheckpointFormat(
        "megatron",
        ".megatron_format",
        True,
        "Megatron-LM's iter_N/mp_rank_00, with --like",
        needs_like=NEEDS_LIKE(),
        keeps_groups_of_like=True,
    ),
    CheckpointFormat(
        "huggingface",
        ".huggingface_format",
        True,
        "a model folder of transformers",
        options=("shard_bytes",),
        like_may_be_configuration=True,
    ),
)
FORMATS = {one.name: one for one in _ROWS}
"""{name: format}. A foreign checkpoint has the first format whose `recognizes` is true."""


def format_named(name: str, key: str = "--format") -> CheckpointFormat:
    """The format of this name. key: the setting or option that states the name, for errors. Raises
    ConfigError for an unknown format."""
    if name not in FORMATS:
        raise ConfigError(key, name, findings.ONE_OF(tuple(FORMATS)))
    return FORMATS[name]


def formats_taking(option: str) -> str:
    """The names of the formats that take an option of `FormatOptions`, joined by "and"."""
    return " and ".join(one.name for one in FORMATS.values() if option in one.options)


def check_options(options: FormatOptions, form: str | None) -> None:
    """Raises ConfigError for an option that the format does not take and that would do nothing.
    form: the format's name; None: the output is made from a template."""
    taken = FORMATS[form].options if form in FORMATS else ()
    for own in fields(FormatOptions):
        given = getattr(options, own.name)
        if own.name in ("like", *taken) or given == getattr(NO_OPTIONS, own.name):
            continue
        shown = given // own.metadata["unit"] if "unit" in own.metadata else given
        right = findings.OF_OTHER_FORMAT(
            formats=formats_taking(own.name), given=form or "--template"
        )
        raise ConfigError(own.metadata["flag"], shown, right)
    if options.like is not None and form is None:
        raise ConfigError("--like", str(options.like), findings.LIKE_WITH_TEMPLATE())


def keys_in(stated: str) -> dict[str, str]:
    """Parses `model=state_dict,optimizer=app.optim` to {part: key}. Raises ConfigError."""
    found: dict[str, str] = {}
    for one in filter(None, (part.strip() for part in stated.split(","))):
        part, equals, key = one.partition("=")
        if not equals or part not in PARTS or (key and "" in key.split(".")):
            raise ConfigError("--keys", one, findings.KEYS_FORM(tuple(PARTS)))
        found[part] = key
    return found
