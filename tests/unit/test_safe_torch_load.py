"""Files that are no checkpoint of torch's, and what is said of them."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flowcheck.errors import StateError
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.trainer_checkpoint.checkpoint_template import load_template

OLD = {"_use_new_zipfile_serialization": False}


class Settings:
    """What a trainer may put beside its tensors, and nobody else should run."""


class Hostile:
    """Runs a command where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def cut(file: Path, left_out: int) -> None:
    torch.save({"weight": torch.zeros(1000)}, file)
    file.write_bytes(file.read_bytes()[:-left_out])


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda file: file.touch(), "is empty"),
        (lambda file: file.mkdir(), "holds no checkpoint of a known format"),
        (lambda file: None, "cannot be read: No such file"),
        (lambda file: cut(file, 9), "is not whole: its end is missing"),
        (lambda file: cut(file, 3000), "is not whole: its end is missing"),
        (lambda file: file.write_text("hello\n" * 9), "is not a file that torch.save wrote"),
        (lambda file: file.write_bytes(bytes(range(256))), "is not a file that torch.save wrote"),
        (lambda file: file.write_bytes(pickle.dumps([1])), "is not a file that torch.save wrote"),
        (
            lambda file: torch.save({"s": Settings()}, file),
            "plain values (test_safe_torch_load.Settings)",
        ),
        (lambda file: torch.save({"s": Hostile()}, file), "plain values (posix.system)"),
        (lambda file: torch.save([Hostile()], file, **OLD), "plain values (posix.system)"),
        (lambda file: zipfile.ZipFile(file, "w").close(), "is not a file that torch.save wrote"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_told_in_one_line(
    tmp_path: Path, write: Callable[[Path], object], told: str
) -> None:
    file = tmp_path / "step-4.pt"
    write(file)
    with pytest.raises(StateError) as caught:
        load_template(file, Layout.of_shapes([(1000,)]))
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
