"""A format that is a module and a row of the table goes through every door; no other file of the
package knows one by its name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from support.formatted import BEFORE, run, step_before
from support.persisting import replica_in, saver_for, take
from support.refused_as import refused_as

import flowcheck
from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import checkpoint_options as findings
from flowcheck.findings.catalog.checkpoint_damage import NOT_AS_WRITTEN
from flowcheck.findings.catalog.earlier_files import EARLIER_SENTENCE
from flowcheck.findings.catalog.output_paths import EXISTS
from flowcheck.findings.catalog.refused_restores import TEMPLATE_OR_FORMAT
from flowcheck.findings.catalog.restored_state import PARAMETERS_ALONE
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import check_save_format
from flowcheck.vault.checkpoint_formats.format_registry import (
    FORMATS,
    CheckpointFormat,
    FormatOptions,
)

PACKAGE = Path(flowcheck.__file__).parent
NUMBERS = "numbers.json"
FOLDER = CheckpointFormat("numbers", __name__, True, "JSON", options=("ranks",))
FILE = CheckpointFormat(
    "list",
    __name__,
    False,
    "JSON",
    options=("ranks",),
    needs_like=EARLIER_SENTENCE("names what was before"),
)


def write(
    contents: CheckpointContents, place: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    path = place / NUMBERS if place.is_dir() else place
    model = {name: tensor.tolist() for name, tensor in contents.model.items()}
    tree = {"model": model, "step": contents.trainer_state.step, "ranks": options.ranks}
    path.write_text(json.dumps(tree))
    sums.file(path.name, path)
    return (PARAMETERS_ALONE(),)


def read(path: Path) -> dict[str, Any]:
    tree = json.loads((path / NUMBERS if path.is_dir() else path).read_text())
    model = {name: torch.tensor(values) for name, values in tree["model"].items()}
    return {**tree, "model": model}


def recognizes(path: Path) -> bool:
    return (path / NUMBERS).is_file() if path.is_dir() else path.suffix == ".list"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (FOLDER, FILE):
        monkeypatch.setitem(FORMATS, one.name, one)


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    return step_before()


@pytest.fixture
def kept(step: CheckpointContents, tmp_path: Path) -> Path:
    checkpoint_save.save_trainer_state(step.trainer_state, tmp_path / "kept", step.layout)
    torch.save({"model": dict(step.model), "step": BEFORE}, tmp_path / "early.pt")
    return tmp_path / "kept"


def test_a_format_that_registers_no_file_leaves_nothing_behind(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChecksummedWriter, "file", lambda self, name, path: None)
    out = tmp_path / "out"
    with refused_as(findings.FORMAT_WROTE_NO_FILE, kind=StateError):
        run("restore", "--checkpoint", kept, "--format", FOLDER.name, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("form", [FOLDER, FILE], ids=lambda form: form.name)
def test_a_step_is_restored_verified_and_loaded_in_it(
    form: CheckpointFormat, step: CheckpointContents, kept: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["restore", "--checkpoint", kept, "--format", form.name, "--out", out, "--ranks", 2]
    if form.needs_like:
        with refused_as(
            EARLIER_SENTENCE,
            kind=ConfigError,
            sentence="names what was before",
            key="--like",
        ):
            run(*words)
        assert not out.exists()
        words += ["--like", tmp_path / "early.pt"]
    code, said = run(*words, "--json")
    told = json.loads(said)
    assert (code, told["format"]) == (0, form.name)
    assert [one["code"] for one in told["not_full"]] == [PARAMETERS_ALONE.code]
    assert run("verify", out)[0] == 0
    tree = flowcheck.load(out)
    assert (tree["step"], tree["ranks"]) == (BEFORE, 2)
    assert all(torch.equal(tree["model"][name], own) for name, own in step.model.items())
    with refused_as(EXISTS, kind=ConfigError):
        run(*words)
    assert run(*words, "--force")[0] == 0

    numbers = out / NUMBERS if form.folder else out
    foreign = tmp_path / "foreign.list"  # what others wrote has no manifest
    foreign.mkdir() if form.folder else foreign.write_bytes(numbers.read_bytes())
    if form.folder:
        (foreign / NUMBERS).write_bytes(numbers.read_bytes())
    assert flowcheck.load(foreign)["step"] == BEFORE
    numbers.write_text(numbers.read_text().replace('"ranks": 2', '"ranks": 3'))
    assert run("verify", out)[0] == 1
    with refused_as(NOT_AS_WRITTEN):
        flowcheck.load(out)


def test_errors_name_it_among_the_others(kept: Path, tmp_path: Path) -> None:
    words = ("restore", "--checkpoint", kept, "--out", tmp_path / "out")
    with refused_as(
        findings.ONE_OF,
        kind=ConfigError,
        choices=re.compile("'flowcheck', 'torch', .*'numbers', 'list'.$"),
    ):
        run(*words, "--format", "onnx")
    with refused_as(TEMPLATE_OR_FORMAT, formats=re.compile("'numbers', 'list'.$")):
        run(*words)
    with refused_as(
        findings.OF_OTHER_FORMAT, kind=ConfigError, formats="deepspeed and numbers and list"
    ):
        run(*words, "--format", "torch", "--ranks", 2)
    with refused_as(
        findings.OF_OTHER_FORMAT, kind=ConfigError, formats="huggingface", given="numbers"
    ):
        run(*words, "--format", "numbers", "--shard-mb", 2)


@pytest.mark.parametrize("form", [FOLDER, FILE], ids=lambda form: form.name)
def test_what_a_running_chain_saves_in_it_is_verified_and_loaded(
    form: CheckpointFormat, shm: Path, tmp_path: Path
) -> None:
    with closing(replica_in(shm / "state")) as replica:
        take(replica)
        model = {
            f"param.{n}": torch.zeros(p.shape) for n, p in enumerate(replica.layout.parameters)
        }
        torch.save({"model": model, "step": 0}, tmp_path / "early.pt")
        options = {"ranks": 3, "like": str(tmp_path / "early.pt")}
        target = tmp_path / "target"
        own = PersistConfig(
            target=str(target), every_steps=1, format=form.name, format_options=options
        )
        check_save_format(own)
        saver = saver_for(own, tmp_path / "staging", shm / "state")
        assert saver.save(replica.step).step == 1
        assert run("verify", target)[0] == 0
        tree = flowcheck.load(target)
        assert (tree["step"], tree["ranks"]) == (1, 3)
        flat = torch.cat([values.reshape(-1) for values in tree["model"].values()])
        assert torch.equal(flat, torch.from_numpy(replica.parameters().copy()))


def compared(tree: ast.AST) -> Iterator[str]:
    """Every text that something is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            yield from (
                own.value
                for own in ast.walk(node)
                if isinstance(own, ast.Constant) and isinstance(own.value, str)
            )


def test_no_other_room_compares_with_the_name_of_a_format() -> None:
    names = set(FORMATS) - {"flowcheck", "torch"}  # the names of packages as well
    apart = ("vault/checkpoint_formats", "lab", "wire")
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if not path.relative_to(PACKAGE).as_posix().startswith(apart)
        for name in compared(ast.parse(path.read_text()))
        if name in names
    }
    assert found == set()
    room = PACKAGE / "vault/checkpoint_formats"
    assert [*compared(ast.parse('a == "dcp"'))] == ["dcp"] and len([*room.glob("*.py")]) > 10


def test_every_format_of_the_table_has_a_row_of_the_page() -> None:
    lines = (PACKAGE / "vault/README.md").read_text().splitlines()
    rows = " ".join(line.split("|")[1] for line in lines if line.startswith("| `"))
    lacking = [name for name in FORMATS if f"`{name}`" not in rows]
    assert lacking == ["numbers", "list"], "those that are registered here alone"
