"""A job file with several mistakes, and one whose paths are meant from its own folder: told so that
the user mends it in one go."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli import flowcheck, refused

SOURCE = '[[source]]\nfile = "job.pcap"\n'
SGD = '[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'


def error_of(*words: str | Path) -> dict[str, Any]:
    """The finding on stderr."""
    code, out, err = flowcheck(*words, "--json")
    assert (code, out) == (2, ""), err
    found: dict[str, Any] = json.loads(err.splitlines()[-1])["finding"]
    return found


def job(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "key", "line", "others"),
    [
        ('[[sorce]]\nfile = "x"\n' + SGD, "sorce", 1, []),
        ("[optimzer]\n" + SGD, "optimzer", 1, []),
        ("steps = 5\n", "steps", 1, []),
        (
            '[[source]]\nfil = "x"\n[optimizer]\nlr = 0.1\n[modle]\n',
            "source.fil",
            2,
            ["optimizer.lr", "modle"],
        ),
    ],
)
def test_misspelt_keys_are_told_first_and_together(
    text: str, key: str, line: int, others: list[str], tmp_path: Path
) -> None:
    told = error_of("up", job(tmp_path, text))["arguments"]
    assert (told["key"], told["place"]["arguments"]["line"]) == (key, line)
    named = told["right"]["arguments"].get("others", [])
    assert [one["arguments"]["key"] for one in named] == others


def test_a_correct_file_without_a_source_is_told_of_that(tmp_path: Path) -> None:
    assert error_of("up", job(tmp_path, SGD))["arguments"]["key"] == "source"


FACTORY = "def made(*_, **__):\n    return 1\n"


@pytest.mark.parametrize(
    ("key", "stated"),
    [
        ("optimizer.schedule", SOURCE + SGD + 'schedule = "own.py:made"\n'),
        ("optimizer.factory", SOURCE + '[optimizer]\nfactory = "own.py:made"\n'),
        ("model.factory", SOURCE + SGD + '[model]\nfactory = "own.py:made"\n'),
        ("nccl_log", 'nccl_log = "own.py"\n' + SOURCE + SGD),
        ("learned", 'learned = "own.py"\n' + SOURCE + SGD),
    ],
)
def test_a_path_meant_from_the_job_file_is_told_with_both_places(
    key: str, stated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "a b", tmp_path / "here"
    folder.mkdir(), here.mkdir()
    (folder / "own.py").write_text(FACTORY)
    file = job(folder, stated)
    monkeypatch.chdir(here)
    told = error_of("up", file)["arguments"]
    assert told["key"] == key
    right = told["right"]
    assert right["arguments"]["found"] == str(folder / "own.py")
    assert right["arguments"]["folder"] == str(here) and right["remedy"]
    monkeypatch.chdir(folder)  # as the remedy says
    again = error_of("up", file)["arguments"]
    assert again.get("right", {}).get("code") != right["code"]


def test_a_file_that_is_nowhere_names_the_path_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    right = error_of("up", job(tmp_path, SOURCE + SGD + 'schedule = "no.py:f"\n'))
    right = right["arguments"]["right"]
    assert right["arguments"]["path"] == str(tmp_path / "no.py")
    assert "working directory" in PAGE


PAGE = (Path(__file__).resolve().parents[2] / "README.md").read_text()


@pytest.mark.parametrize("text", ["optimizer = ''\n" + SOURCE, SOURCE + "[optimizer]\nname = ''\n"])
def test_an_empty_optimizer_lists_those_that_torch_has(text: str, tmp_path: Path) -> None:
    told = refused("up", job(tmp_path, text))
    assert "name must be stated" not in told and "= ''" not in told.split(": the optimizer")[0][-4:]
    finding = error_of("up", job(tmp_path, text))["arguments"]
    assert finding["key"] in ("optimizer", "optimizer.name")
    right = finding["right"]["arguments"]
    known = (right if "known" in right else right["needed"]["arguments"])["known"]
    classes = {name.lower() for name in dir(torch.optim)}
    assert {"sgd", "adamw"} <= set(known) <= classes
    assert {"lbfgs", "sparseadam"}.isdisjoint(known), "which are refused"


@pytest.mark.parametrize("name", ["j.toml", "j", "j.toml.gz", "a b.toml"])
def test_the_printed_command_unpacks_a_job_file_under_a_name_of_its_kind(
    name: str, tmp_path: Path
) -> None:
    if shutil.which("gzip") is None:
        pytest.skip("gzip is not installed")
    packed = tmp_path / name
    packed.write_bytes(gzip.compress(SGD.encode()))
    right = error_of("up", packed)["arguments"]["right"]
    subprocess.run(right["arguments"]["command"], shell=True, check=True, cwd=tmp_path, timeout=60)
    (new,) = [path for path in tmp_path.iterdir() if path != packed]
    assert new.suffix == ".toml" and ".toml." not in new.name
    assert tomllib.loads(new.read_text())["optimizer"]["name"] == "sgd"
    assert gzip.decompress(packed.read_bytes()) == SGD.encode(), "the packed file stays"
