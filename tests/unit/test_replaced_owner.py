"""`--force` onto another user's output, as root: it stays theirs, or is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.output_paths import OTHERS_OUTPUT
from flowcheck.vault.overwrite_guard import OutputTarget, new_output
from flowcheck.vault.replaced_owner import EarlierOutput

USER, GROUP = 4321, 4322
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root replaces other users' files")


def theirs(path: Path, mode: int = 0o640) -> Path:
    path.write_bytes(b"theirs")
    path.chmod(mode)
    os.chown(path, USER, GROUP)
    return path


def written(out: Path, *, manifest: bool = True) -> None:
    with new_output(OutputTarget(path=out, folder=False, force=True), manifest=manifest) as made:
        for place in filter(None, made):
            place.write_bytes(b"{}")


def owner_and_mode(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@as_root
@pytest.mark.parametrize(("mode", "left"), [(0o640, 0o640), (0o666, 0o644), (0o4755, 0o644)])
def test_a_file_stays_its_owners_with_its_mode(tmp_path: Path, mode: int, left: int) -> None:
    """The manifest beside it too: else `verify` could not be run by the owner."""
    out = theirs(tmp_path / "own.pt", mode)
    written(out)
    assert out.read_bytes() == b"{}"
    for path in (out, tmp_path / "own.pt.manifest.json"):
        assert owner_and_mode(path) == (USER, GROUP, left)


@as_root
def test_a_folder_stays_its_owners(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, USER, GROUP)
    with new_output(OutputTarget(path=out, folder=True, force=True)) as (place, _):
        (place / "below").mkdir()
        (place / "below" / "file").write_bytes(b"")
        (place / "link").symlink_to("below/file")
    for path in (out, out / "below", out / "below" / "file"):
        assert owner_and_mode(path)[:2] == (USER, GROUP)


def test_a_file_of_the_own_keeps_its_mode_and_a_new_one_is_private(tmp_path: Path) -> None:
    out = tmp_path / "own.pt"
    written(out, manifest=False)
    assert owner_and_mode(out)[2] == 0o600
    out.chmod(0o644)
    written(out, manifest=False)
    assert owner_and_mode(out)[0::2] == (os.geteuid(), 0o644)


@as_root
def test_where_anybody_may_write_nobody_elses_file_is_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    out = theirs(tmp_path / "own.pt")
    with refused_as(OTHERS_OUTPUT, kind=ConfigError):
        written(out)
    assert out.read_bytes() == b"theirs" and owner_and_mode(out) == (USER, GROUP, 0o640)
    out.unlink()
    written(out)
    assert owner_and_mode(out)[0] == 0


@as_root
@pytest.mark.parametrize("kind", ["symbolic", "hard", "theirs"])
def test_what_was_put_in_its_place_is_not_given_away(tmp_path: Path, kind: str) -> None:
    precious, place = tmp_path / "precious", tmp_path / "place"
    precious.write_bytes(b"root's")
    if kind == "symbolic":
        place.symlink_to(precious)
    elif kind == "hard":
        place.hardlink_to(precious)
    else:
        theirs(place)
    with pytest.raises(OSError):
        EarlierOutput(USER, GROUP, 0o644).pass_on(place)
    assert owner_and_mode(precious)[0] == 0
