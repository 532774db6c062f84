"""What FlowCheck makes is for its owner alone, and what others made is not taken over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.persisting import replica_in, take
from support.refused_as import like, refused_as

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import ConfigError, RingError
from flowcheck.findings.catalog import shared_file_reasons as reasons
from flowcheck.findings.catalog.untrusted_names import OTHER_OWNER, WRITABLE_BY_OTHERS
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.private_files import make_folder, open_private
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.stages.run_directory.process_liveness import link_run_dir, run_dir_of_memory
from flowcheck.stages.run_directory.run_dir import RunDir

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    was = os.umask(0)
    yield
    os.umask(was)


def modes(root: Path) -> set[int]:
    return {path.lstat().st_mode & 0o7777 for path in root.rglob("*") if not path.is_symlink()}


def test_a_checkpoint_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replica = replica_in(tmp_path / "state", 1000)
    take(replica, 2)
    checkpoint_save.save(replica, out)
    replica.close()
    assert modes(out) == {0o600, 0o700} and out.stat().st_mode & 0o777 == 0o700


def test_a_folder_for_a_group_has_what_is_below_it_read_by_that_group(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o2750)
    write_atomically(tmp_path / "out" / "latest", b"x")
    make_folder(tmp_path / "out" / "a" / "b")
    assert modes(tmp_path / "out") == {0o640, 0o2750}


@as_root
@pytest.mark.parametrize("what", ["owner", "mode"])
def test_a_run_folder_of_somebody_else_is_refused(tmp_path: Path, shm: Path, what: str) -> None:
    root = tmp_path / "run"
    root.mkdir(mode=0o700)
    os.chown(root, NOBODY, NOBODY) if what == "owner" else root.chmod(0o777)
    for use in (lambda: RunDir(root), lambda: RunDir.create(root, shm)):
        with refused_as(OTHER_OWNER if what == "owner" else WRITABLE_BY_OTHERS, kind=ConfigError):
            use()
    assert list(root.iterdir()) == [] and list(shm.iterdir()) == []


@as_root
def test_shared_memory_of_somebody_else_leads_to_no_run(tmp_path: Path) -> None:
    memory, root = tmp_path / "flowcheck-1-1-0", tmp_path / "run"
    memory.mkdir(mode=0o700)
    root.mkdir(mode=0o700)
    (root / "memory").symlink_to(memory)
    link_run_dir(root, memory)
    assert run_dir_of_memory(memory) == root
    os.chown(memory, NOBODY, NOBODY)
    assert run_dir_of_memory(memory) is None
    with refused_as(OTHER_OWNER, kind=ConfigError):
        _ = RunDir(root).memory


@as_root
@pytest.mark.parametrize("what", ["owner", "mode", "link", "folder", "folder mode"])
def test_a_ring_that_others_may_write_to_is_not_opened(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    path = folder / "ring"
    FrameRing.create(path, slots=64).close()
    FrameRing.open(path).close()
    match what:
        case "owner":
            os.chown(path, NOBODY, NOBODY)
        case "mode":
            path.chmod(0o666)
        case "link":
            path.rename(tmp_path / "far")
            path.symlink_to(tmp_path / "far")
        case "folder":
            os.chown(folder, NOBODY, NOBODY)
        case _:
            folder.chmod(0o777)
    wanted = {
        "owner": like(reasons.FILE_OF_ANOTHER_USER, path=str(path), owner_uid=NOBODY),
        "mode": like(reasons.FILE_WRITABLE_BY_OTHERS, path=str(path), mode=0o666),
        "link": like(reasons.FILE_IS_LINK, path=str(path)),
        "folder": like(reasons.FOLDER_OF_ANOTHER_USER, path=str(folder), owner_uid=NOBODY),
        "folder mode": like(reasons.FOLDER_WRITABLE_BY_OTHERS, path=str(folder), mode=0o777),
    }
    with refused_as(wanted[what], kind=RingError):
        FrameRing.open(path)


def test_no_link_and_no_pipe_is_opened_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "far").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "far")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises((ConfigError, OSError)):
            open_private(tmp_path / name, os.O_WRONLY | os.O_TRUNC)
    assert (tmp_path / "far").read_text() == "x"
