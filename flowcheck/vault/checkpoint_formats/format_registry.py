"""The checkpoint formats: all that the rest of the program knows of one is a field of its row.

A further format is a module in this folder, a row in the table below, and one in the README of the
vault. Pure data, no torch: a format's module is loaded when something is written or read with it.
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
"""What a checkpoint is made of; each format has a place for some."""


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a format is asked for beside its name; `CheckpointFormat.options` tells who takes it.
    flag, unit: how a user gives it."""

    keys: Mapping[str, str] = field(default_factory=dict, metadata={"flag": "--keys"})
    """Part to its key, nested by dots; "" leaves the part out."""
    like: Path | None = None
    """An earlier checkpoint of the job, or a model's folder: what is passed through from there."""
    shard_bytes: int = field(
        default=5_000_000_000, metadata={"flag": "--shard-mb", "unit": 1_000_000}
    )
    """Least whole number of files of at most so many bytes."""
    ranks: int = field(default=1, metadata={"flag": "--ranks"})
    """Data-parallel ranks that will load it."""
    stage: int = field(default=0, metadata={"flag": "--zero"})
    """ZeRO's, 0 for none."""


NO_OPTIONS = FormatOptions()


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """One way to keep a step."""

    name: str
    module: str
    """It has `write` and `read`, and `recognizes` where the format shows in its files; `.NAME`: a
    module of this folder."""
    folder: bool
    """An output is a folder, else one file."""
    what: str
    """For users, a phrase."""
    options: tuple[str, ...] = ()
    """Those of `FormatOptions` that it takes, beside `like`, which all take."""
    needs_like: Finding | None = None
    """What `like` must be; None: a step is written without it as well."""
    keeps_groups_of_like: bool = False
    """A trainer goes on with the optimizer's groups of `like`: they must be those that the job file
    states."""
    like_may_be_configuration: bool = False
    """`like` may be a model's folder with a config.json and no checkpoint."""
    reader_verifies: bool = False
    """`read` holds what it reads against the manifest."""

    def write(
        self,
        contents: CheckpointContents,
        place: Path,
        options: FormatOptions,
        sums: ChecksummedWriter,
    ) -> tuple[Finding, ...]:
        """Writes into an empty folder or a new file and syncs it; why it is no full resume."""
        return tuple(self._loaded.write(contents, place, options, sums))

    def read(self, path: Path) -> Any:
        """What is there as one nested dictionary, as torch.load would give it."""
        return self._loaded.read(path)

    def recognizes(self, path: Path) -> bool:
        """Whether a file, or folder, that somebody else wrote is of this format."""
        told = getattr(self._loaded, "recognizes", None)
        return told is not None and bool(told(path))

    @property
    def _loaded(self) -> Any:
        return importlib.import_module(self.module, __package__)


NATIVE_FORMAT = "flowcheck"
"""The format of steps that are kept and served, and of a [persist] that names none."""
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
        "deepspeed", ".deepspeed_format", True, "a DeepSpeed folder", options=("ranks", "stage")
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
"""By name. What somebody else wrote is of the first whose `recognizes` says so."""


def format_named(name: str, key: str = "--format") -> CheckpointFormat:
    """key: the setting or option that names it. Raises ConfigError for an unknown format."""
    if name not in FORMATS:
        raise ConfigError(key, name, findings.ONE_OF(tuple(FORMATS)))
    return FORMATS[name]


def formats_taking(option: str) -> str:
    """The formats that take an option of `FormatOptions`."""
    return " and ".join(one.name for one in FORMATS.values() if option in one.options)


def check_options(options: FormatOptions, form: str | None) -> None:
    """Raises ConfigError for an option that the format does not take, as it would do nothing.
    form: None where a template is filled."""
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
    """`model=state_dict,optimizer=app.optim` as a mapping. Raises ConfigError."""
    found: dict[str, str] = {}
    for one in filter(None, (part.strip() for part in stated.split(","))):
        part, equals, key = one.partition("=")
        if not equals or part not in PARTS or (key and "" in key.split(".")):
            raise ConfigError("--keys", one, findings.KEYS_FORM(tuple(PARTS)))
        found[part] = key
    return found
