"""What root hands over to a chain's user is what root made for it: a link that this user put in its
run directory, or on the way to a folder, leads to nothing of root's that becomes the user's."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.run_directories import OF_TWO_OWNERS
from flowcheck.stages.privilege import drop_privileges, folder_ownership
from flowcheck.stages.run_directory.process_liveness import link_run_dir
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import refuse_two_owners
from flowcheck.stages.run_directory.service_account import Account

WHO = Account("flowcheck", 61000, 61000, (), Path("/var/cache/flowcheck-61000"))
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands anything over")


@pytest.fixture
def reachable(tmp_path: Path) -> Iterator[Path]:
    """A folder of root's that others may enter, as pytest's own are not."""
    folder = Path("/run") / f"flowcheck-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    yield folder
    for where, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            path = Path(where, name)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def made(folder: Path, *names: str) -> Path:
    """A folder of root's with these files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"{}")
    folder.mkdir(exist_ok=True)
    return folder


def run_of_the_user(folder: Path) -> Path:
    made(folder, "config.json")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, WHO.user, WHO.group)
    return folder


@pytest.mark.parametrize("of", [".", "jobs/2"])
@pytest.mark.parametrize("leads", ["nowhere", "to another run"])
def test_a_link_in_the_users_run_hands_over_no_folder_of_roots(
    of: str, leads: str, reachable: Path
) -> None:
    """Such as what root keeps for itself of chains, /var/cache/flowcheck-shown."""
    kept = made(reachable / "flowcheck-shown", "secret")
    if leads == "to another run":
        other = made(reachable / "other")
        (other / "memory").symlink_to(kept)
        link_run_dir(other, kept)
    run = run_of_the_user(reachable / "run")
    (run / of).mkdir(parents=True, exist_ok=True)
    (run / of / "memory").symlink_to(kept)
    folder_ownership.hand_over_run_folder(run, WHO)
    assert owners(kept) == {0}


def test_the_memory_of_a_chain_that_root_ran_goes_with_its_run(reachable: Path) -> None:
    run = made(reachable / "run", "jobs/2/config.json", "config.json", "learned/job.json")
    for number, of in enumerate((run, run / "jobs/2")):
        memory = made(reachable / f"flowcheck-1-2-{number}", "shard")
        (of / "memory").symlink_to(memory)
        link_run_dir(of, memory)
    (run / "config.json").write_bytes(b'{"source":[],"optimizer":{},"ring":{}}')
    folder_ownership.hand_over_run_folder(run, WHO)
    assert owners(run) == {WHO.user}
    assert owners(reachable / "flowcheck-1-2-0") == owners(reachable / "flowcheck-1-2-1")
    assert owners(reachable / "flowcheck-1-2-0") == {WHO.user}


@pytest.mark.parametrize("final", [True, False])
def test_a_link_on_the_way_to_checkpoints_hands_over_no_folder_of_roots(
    final: bool, reachable: Path
) -> None:
    """An empty one is taken for a folder of checkpoints to be: the next cron job's, say."""
    roots = made(reachable / "etc")
    made(roots / "empty")
    own = made(reachable / "own")
    os.chown(own, WHO.user, WHO.group)
    (own / "way").symlink_to(roots / "empty" if final else roots)
    os.lchown(own / "way", WHO.user, WHO.group)
    folder_ownership.hand_over_output_folder(own / "way" if final else own / "way" / "empty", WHO)
    assert owners(roots) == {0}


def test_what_belongs_to_the_user_within_is_not_looked_into(reachable: Path) -> None:
    """It may be another folder by the time it is."""
    folder = made(reachable / "kept", "step-1/manifest.json", "step-2/sub/of-root")
    os.chown(folder / "step-2", WHO.user, WHO.group)
    folder_ownership.hand_over_output_folder(folder, WHO)
    assert owners(folder / "step-1") == {WHO.user}
    assert folder.stat().st_uid == WHO.user
    assert (folder / "step-2" / "sub").stat().st_uid == 0


def test_a_folder_is_handed_over_from_below(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has a folder may put another one, or a link, in place of what is in it."""
    folder = made(reachable / "kept", "step-1/deep/manifest.json")
    secret, deep = made(reachable / "secret", "manifest.json"), folder / "step-1" / "deep"
    looks = {"stat": os.stat, "lstat": os.lstat}

    def swapped(look: str) -> Callable[..., os.stat_result]:
        def first(path: str, **how: Any) -> os.stat_result:
            """The new owner of the folder above is quicker than root's next look."""
            within = str(path).endswith("manifest.json")
            if within and looks["lstat"](deep.parent).st_uid == WHO.user:
                deep.rename(reachable / "away")
                deep.symlink_to(secret)
            return looks[look](path, **how)

        return first

    with monkeypatch.context() as patch:
        for look in looks:
            patch.setattr(os, look, swapped(look))
        folder_ownership.hand_over_output_folder(folder, WHO)
    assert owners(secret) == {0}
    assert folder.stat().st_uid == WHO.user


def test_what_was_handed_over_is_roots_again_where_the_chain_stays_roots(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages of a chain run as the owner of its run directory, and could not read what root
    writes there."""
    job = reachable / "job.toml"
    job.write_text(
        f'checkpoint = "{reachable / "saved"}"\n'
        f'[optimizer]\nname = "SGD"\nlearning_rate = 0.1\n[[source]]\nfile = "{job}"\n'
    )
    asked = list[str]()

    def refuse(folder: Path, _: Account) -> None:
        asked.append(str(folder))
        assert (reachable / "run").stat().st_uid == WHO.user, "handed over by then"
        raise NotADirectoryError(20, "Not a directory", str(folder))

    monkeypatch.setattr(drop_privileges, "_nothing_to_do", lambda: False)
    monkeypatch.setattr(drop_privileges, "account", lambda _: WHO)
    monkeypatch.setattr(drop_privileges, "forbid_user_code", lambda _: None)
    monkeypatch.setattr(drop_privileges.COMMAND_HERE, "notes", [])
    monkeypatch.setattr(folder_ownership, "create_private_folders", lambda _: None)
    monkeypatch.setattr(folder_ownership, "hand_over_output_folder", refuse)
    drop_privileges.drop_for_chain(job, reachable / "run", live=True)
    assert asked == [str(reachable / "saved")]
    assert owners(reachable / "run") == {0}


def test_a_file_in_place_of_an_output_folder_is_left_to_whoever_writes_there(
    reachable: Path,
) -> None:
    made(reachable, "job.pcap")
    folder_ownership.hand_over_output_folder(reachable / "job.pcap", WHO)
    assert owners(reachable) == {0}


@pytest.mark.parametrize("left", ["config.json", "pids/supervisor", "learned/job.json"])
def test_a_run_that_was_handed_over_half_is_told_with_the_command_that_repairs_it(
    reachable: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    run = made(reachable / "run", left)
    os.chown(run, WHO.user, WHO.group)
    monkeypatch.setattr(os, "geteuid", lambda: WHO.user)
    with pytest.raises(ConfigError) as caught:
        RunDir.create(run, reachable)
    right = caught.value.right
    assert right == OF_TWO_OWNERS(
        path=left.split("/", maxsplit=1)[0], owner=0, user=WHO.user, run=run
    )
    monkeypatch.undo()
    command = next(span for span in right.remedy.split("`") if span.startswith("chown"))
    subprocess.run(shlex.split(command), check=True)
    monkeypatch.setattr(os, "geteuid", lambda: WHO.user)
    refuse_two_owners(run)
