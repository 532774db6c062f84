"""A file of the trainer's through torch's own reader, and what it is where that refuses it."""

from __future__ import annotations

import argparse
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError

ZIP_MAGIC = b"PK\x03\x04"
"""Of the archives torch.save writes."""
_REFUSED = re.compile(r"[Uu]nsupported (?:global: GLOBAL|global:|class:|GLOBAL) ([\w.]+)")
"""torch/_weights_only_unpickler.py: of what is not allowed, and of modules that never are."""


def load_tree(path: Path) -> Any:
    """What torch.save put there, of tensors and plain values. Raises StateError, which says what
    the file is instead."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(ZIP_MAGIC))
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from error
    if not begin:
        raise StateError(f"{path}: is empty")
    if begin == ZIP_MAGIC and not zipfile.is_zipfile(path):
        raise StateError(f"{path}: is not whole: its end is missing, as where writing was cut off")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch guesses aloud what a foreign file may be
            mapped = begin == ZIP_MAGIC  # a private mapping: the file never changes
            with torch.serialization.safe_globals([argparse.Namespace]):  # it only holds values
                return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises whatever its unpickler meets
        raise StateError(f"{path}: {told_of(error, archive=begin == ZIP_MAGIC)}") from error


def told_of(error: Exception, *, archive: bool) -> str:
    """What a file is that torch refuses with this error."""
    told = str(error)
    other = _REFUSED.search(told)
    if other is not None:
        return (
            f"holds other than tensors and plain values ({other[1]}), which would run code to be "
            "read: name a checkpoint without it"
        )
    if "TorchScript" in told:
        return "is a TorchScript program, not a checkpoint that torch.save wrote"
    if archive:
        return "is a zip archive, but not a whole one that torch.save wrote"
    return "is not a file that torch.save wrote, or not a whole one"
