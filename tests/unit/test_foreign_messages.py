"""The installed libraries say what is read in their texts (flowcheck/foreign_messages.py)."""

import errno
import io
import pickle
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from support.refused_as import refused_as

from flowcheck import foreign_messages
from flowcheck.findings.catalog.unreadable_checkpoints import OTHER_ZIP, TORCHSCRIPT
from flowcheck.vault.safe_torch_load import safe_torch_load


class Names(msgspec.Struct):
    names: tuple[int, int]
    step: int


def said_of(document: dict[str, object]) -> str:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(document, Names)
    return str(refused.value)


def test_msgspec_names_the_place_and_what_is_wrong_there() -> None:
    missing = said_of({"names": [1, 2]})
    assert foreign_messages.MSGSPEC_MISSING.fullmatch(missing)[1] == "step"  # type: ignore[index]
    length = said_of({"names": [1], "step": 1})
    place = foreign_messages.MSGSPEC_PLACE.search(length)
    assert place is not None and place[1] == "names"
    found = foreign_messages.MSGSPEC_LENGTH.fullmatch(length[: place.start()])
    assert found is not None and found.groups() == ("2", "1")
    kind = said_of({"names": [1, "x"], "step": 1})
    place = foreign_messages.MSGSPEC_PLACE.search(kind)
    assert place is not None and place[1] == "names[1]"
    wrong = foreign_messages.MSGSPEC_TYPE.fullmatch(kind[: place.start()])
    assert wrong is not None and wrong.groups() == ("int", "str")


def test_torch_names_what_a_file_would_have_called() -> None:
    file = io.BytesIO()
    torch.save({"a": Path("x")}, file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError) as refused:
        torch.load(file, weights_only=True)
    found = foreign_messages.TORCH_NOT_ALLOWED.search(str(refused.value))
    assert found is not None and found[1] == "pathlib.PosixPath"


def test_torch_says_that_a_schedule_has_ended() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    with pytest.raises(ValueError) as refused:
        for _ in range(5):
            optimizer.step()
            schedule.step()
    assert str(refused.value).startswith(foreign_messages.TORCH_SCHEDULE_ENDED)


def test_safetensors_has_the_number_of_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError) as refused:
        save_file({"a": torch.zeros(1)}, tmp_path / "none" / "x")
    found = foreign_messages.SAFETENSORS_ERRNO.search(str(refused.value))
    assert found is not None and int(found[1]) == errno.ENOENT


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_of_torch_is_told_from_another_archive(tmp_path: Path) -> None:
    """By its records, whatever torch says of it."""
    program, other = tmp_path / "program.pt", tmp_path / "other.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), program)
    with refused_as(TORCHSCRIPT):
        safe_torch_load(program)
    torch.save({"a": torch.zeros(1)}, other)
    other.write_bytes(other.read_bytes().replace(b"data.pkl", b"dota.pkl"))
    with refused_as(OTHER_ZIP):
        safe_torch_load(other)
