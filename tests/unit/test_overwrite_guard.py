"""`restore --force` takes away what FlowCheck wrote there itself, and nothing else."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.formatted import BEFORE, run, step_before
from support.refused_as import Wanted, like, refused_as

import flowcheck
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import output_paths as findings
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import write
from flowcheck.vault.overwrite_guard import OutputTarget, ProtectedPath

STEP = f"step-{BEFORE}"


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    return step_before()


@pytest.fixture
def kept(step: CheckpointContents, tmp_path: Path) -> Path:
    checkpoint_save.save_trainer_state(step.trainer_state, tmp_path / "kept", step.layout)
    return tmp_path / "kept"


def held(folder: Path) -> dict[str, str]:
    """All that lies below a folder, by name and sum."""
    files = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    sums = {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    return sums | {f"{path.relative_to(folder)}/": "" for path in folder.rglob("*/")}


def forced(kept: Path, out: Path, form: str = "torch", *more: object) -> int:
    return run("restore", "--checkpoint", kept, "--format", form, "--out", out, "--force", *more)[0]


@pytest.mark.parametrize("form", ["torch", "safetensors", "dcp"])
def test_a_folder_that_is_not_of_ours_stays_as_it_is(form: str, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "junk" / "sub").mkdir(parents=True)
    (tmp_path / "junk" / "thesis.txt").write_text("x")
    before = held(tmp_path)
    with refused_as(findings.HOLDS_FOREIGN, kind=ConfigError, names=("thesis.txt", "sub/")):
        forced(kept, tmp_path / "junk", form)
    assert held(tmp_path) == before


@pytest.mark.parametrize("strange", ["notes.txt", ".hidden", "sub/"])
def test_what_a_user_put_into_an_output_of_ours_is_named_and_stays(
    strange: str, kept: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert forced(kept, out, "dcp") == 0
    assert forced(kept, out, "dcp") == 0, "an output of ours is replaced"
    (out / strange).mkdir() if strange[-1] == "/" else (out / strange).write_text("x")
    before = held(tmp_path)
    with refused_as(findings.HOLDS_FOREIGN, kind=ConfigError, names=(strange,)):
        forced(kept, out, "dcp")
    assert held(tmp_path) == before


KEPT_STEPS = "the folder of kept steps"
RESTORED = "the step that is restored"
IS_KEPT = like(findings.IS_INPUT, what=KEPT_STEPS)
IN_KEPT = like(findings.LIES_IN_INPUT, what=KEPT_STEPS)
HOLDS_RESTORED = like(findings.HOLDS_INPUT, what=RESTORED)


@pytest.mark.parametrize("form", ["torch", "dcp"])
@pytest.mark.parametrize(
    ("out", "wanted"),
    [
        ("kept", [IS_KEPT, HOLDS_RESTORED]),
        ("kept/" + STEP, [like(findings.IS_INPUT, what=RESTORED), IN_KEPT]),
        ("kept/step-9", [IN_KEPT]),
        ("kept/latest", [IN_KEPT]),
        ("kept/" + STEP + "/new", [findings.LIES_IN_INPUT]),
        (".", [findings.NO_NAME, findings.HOLDS_INPUT]),
        ("elsewhere/link/../kept", [IS_KEPT, HOLDS_RESTORED]),
    ],
)
@pytest.mark.parametrize("below", ["", STEP])
def test_what_a_step_is_made_from_is_never_what_it_is_written_to(
    below: str, out: str, wanted: list[Wanted], form: str, kept: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(kept)
    before = held(tmp_path)
    with refused_as(*wanted, kind=ConfigError):
        forced(kept / below, tmp_path / out, form)
    assert held(tmp_path) == before


def test_a_mount_is_seen_through_and_links_are_not_written_through(
    kept: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.txt").write_text("x")
    for link, to in (("one", kept), ("other", tmp_path / "own.txt"), ("none", tmp_path / "gone")):
        (tmp_path / link).symlink_to(to)
        with refused_as(
            findings.IS_LINK, like(findings.IS_INPUT, what=KEPT_STEPS), kind=ConfigError
        ):
            forced(kept, tmp_path / link)
    (tmp_path / "mounted").mkdir()
    command = ["mount", "--bind", str(kept), str(tmp_path / "mounted")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount --bind needs root")
    try:
        with refused_as(findings.IS_INPUT, kind=ConfigError, what=KEPT_STEPS):
            forced(kept, tmp_path / "mounted", "dcp")
    finally:
        subprocess.run(["umount", str(tmp_path / "mounted")], check=True)
    assert (kept / STEP / "manifest.json").is_file()


def test_an_empty_folder_and_one_file_for_one_file_may_go(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert forced(kept, tmp_path / "empty", "dcp") == 0
    (tmp_path / "old.pt").write_bytes(b"old")
    assert forced(kept, tmp_path / "old.pt") == 0
    assert torch.load(tmp_path / "old.pt")["step"] == BEFORE
    with refused_as(findings.IS_FILE, kind=ConfigError):
        forced(kept, tmp_path / "old.pt", "dcp")
    os.mkfifo(tmp_path / "pipe")
    with refused_as(findings.IS_SPECIAL, kind=ConfigError):
        forced(kept, tmp_path / "pipe")
    (tmp_path / "new.pt.manifest.json").write_text("my own list")
    with refused_as(findings.FOREIGN_MANIFEST, kind=ConfigError):
        forced(kept, tmp_path / "new.pt")
    assert (tmp_path / "new.pt.manifest.json").read_text() == "my own list"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_neither_the_template_nor_a_folder_is_written_over(
    step: CheckpointContents, kept: Path, tmp_path: Path
) -> None:
    write(step, tmp_path / "t.pt", "torch")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own").write_text("x")
    words = ("restore", "--checkpoint", kept, "--template", tmp_path / "t.pt", "--force", "--out")
    before = held(tmp_path)
    for out, entry in (
        ("t.pt", findings.IS_INPUT),
        ("folder", findings.HOLDS_FOREIGN),
        ("kept", findings.IS_INPUT),
    ):
        with refused_as(entry, kind=ConfigError, key="--out"):
            run(*words, tmp_path / out)
    assert held(tmp_path) == before
    write(step, tmp_path / "out.pt", "torch")
    assert run(*words, tmp_path / "out.pt")[0] == 0
    assert not (tmp_path / "out.pt.manifest.json").exists(), "it would speak of another file"


def test_what_came_while_it_was_written_is_looked_at_again(
    step: CheckpointContents, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write(step, out, "dcp")
    with (
        refused_as(findings.HOLDS_FOREIGN, kind=ConfigError, names=("late.txt",)),
        OutputTarget(path=out, force=True, folder=True).replacing() as make_room,
    ):
        (out / "late.txt").write_text("x")
        make_room()
    with (
        refused_as(findings.EXISTS, kind=ConfigError),
        OutputTarget(path=tmp_path / "new", force=False, folder=False).replacing() as make_room,
    ):
        (tmp_path / "new").write_text("x")
        make_room()
    assert (out / "late.txt").exists() and (tmp_path / "new").read_text() == "x"


def test_after_an_error_the_old_output_has_its_name_back(
    step: CheckpointContents, tmp_path: Path
) -> None:
    for form in ("dcp", "torch"):
        write(step, tmp_path / form, form)
        before = held(tmp_path)
        with (
            pytest.raises(OSError, match="full"),
            OutputTarget(
                path=tmp_path / form, force=True, folder=form == "dcp"
            ).replacing() as make_room,
        ):
            make_room()
            raise OSError("full")
        assert held(tmp_path) == before
        assert run("verify", tmp_path / form)[0] == 0


def test_what_is_to_be_spared_is_spared_before_it_is_read(kept: Path, tmp_path: Path) -> None:
    (kept / STEP / "model.safetensors").write_bytes(b"damaged: reading it would be told instead")
    with refused_as(findings.IS_INPUT, kind=ConfigError, what=KEPT_STEPS):
        forced(kept, kept, "dcp")
    own = ProtectedPath(tmp_path / "gone", "something that is not there")
    with OutputTarget(
        path=tmp_path / "gone", force=False, folder=True, protected=(own,)
    ).replacing():
        pass


@contextmanager
def disk_of(place: Path, kib: int) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount -t tmpfs needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("form", ["torch", "safetensors", "dcp"])
def test_where_a_manifest_has_no_room_there_is_no_output(
    form: str, step: CheckpointContents, tmp_path: Path
) -> None:
    """On disks from one with room for nothing to one with room for all, a page more each."""
    whole = refused = 0
    for kib in range(4, 200, 4):
        with disk_of(tmp_path / "disk", kib) as disk:
            try:
                write(step, disk / "out", form)
            except OSError as error:
                assert error.filename is not None, "what has none is told by a traceback"
                assert list(disk.iterdir()) == []
                refused += 1
            else:
                assert flowcheck.load(disk / "out")["step"] == BEFORE
                whole += 1
        if whole:
            break
    assert refused and whole
