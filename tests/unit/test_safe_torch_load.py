"""Files that are no checkpoint of torch's, and what is said of them."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused_as import Wanted, like, refused_as

from flowcheck.findings.catalog import unreadable_checkpoints as unreadable
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template

OLD = {"_use_new_zipfile_serialization": False}


class Settings:
    """What a trainer may put beside its tensors, and nobody else should run."""


RUNS_CODE = unreadable.WOULD_RUN_CODE


class Hostile:
    """Runs a command where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def cut(file: Path, left_out: int) -> None:
    torch.save({"weight": torch.zeros(1000)}, file)
    file.write_bytes(file.read_bytes()[:-left_out])


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        (lambda file: file.touch(), unreadable.EMPTY),
        (lambda file: file.mkdir(), unreadable.UNKNOWN_FORMAT),
        (lambda file: None, like(unreadable.CANNOT_BE_READ, error=re.compile("No such file"))),
        (lambda file: cut(file, 9), unreadable.END_MISSING),
        (lambda file: cut(file, 3000), unreadable.END_MISSING),
        (lambda file: file.write_text("hello\n" * 9), unreadable.NOT_TORCH_SAVE),
        (lambda file: file.write_bytes(bytes(range(256))), unreadable.NOT_TORCH_SAVE),
        (lambda file: file.write_bytes(pickle.dumps([1])), unreadable.NOT_TORCH_SAVE),
        (
            lambda file: torch.save({"s": Settings()}, file),
            like(RUNS_CODE, name=re.compile(r"test_safe_torch_load\.Settings$")),
        ),
        (
            lambda file: torch.save({"s": Hostile()}, file),
            like(RUNS_CODE, name="posix.system"),
        ),
        (
            lambda file: torch.save([Hostile()], file, **OLD),
            like(RUNS_CODE, name="posix.system"),
        ),
        (lambda file: zipfile.ZipFile(file, "w").close(), unreadable.NOT_TORCH_SAVE),
    ],
)
def test_a_file_that_is_no_checkpoint_is_told_in_one_line(
    tmp_path: Path, write: Callable[[Path], object], wanted: Wanted
) -> None:
    file = tmp_path / "step-4.pt"
    write(file)
    with refused_as(wanted) as caught:
        load_template(file, Layout.of_shapes([(1000,)]))
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
