"""Every system call that changes a file is a kill point of what gives steps away: a restore in
place of an older one, and a step that is fetched from another machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fetching import sums, verb
from support.file_kills import explore, lacks
from support.formatted import AFTER, BEFORE, run
from support.persisting import kept_at, proved, stepped
from support.steps import given_of, layout_of, made, trained

from flowcheck.errors import StateError
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import write
from flowcheck.vault.download.checkpoint_download import download_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def folder() -> Iterator[Path]:
    if why := lacks():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as place:
        yield Path(place)


def parts(step: int) -> CheckpointContents:
    net, optimizer = made()
    trained(net, optimizer, 1, step)
    return contents_of(given_of(net, optimizer, step), layout_of(net))


def verified(out: Path) -> int:
    """The step of what is there, once it has the names that `verify` says it is to get."""
    try:
        status, said = run("verify", out, "--json")
    except StateError as error:
        (whole, *_) = error.finding.arguments["left"]
        subprocess.run(shlex.split(whole.arguments["command"]), check=True)
        status, said = run("verify", out, "--json")
    assert status == 0, said
    found = re.search(r'"step": ?(\d+)', said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.parametrize("fills", [3, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "form",
    ["torch", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("safetensors", "dcp"))],
)
def test_a_restore_in_place_of_another_is_one_of_the_two(
    folder: Path, form: str, fills: int
) -> None:
    def make(place: Path) -> None:
        write(parts(BEFORE), place / "out", form)

    def work(place: Path) -> None:
        write(parts(AFTER), place / "out", form, force=True)

    def judge(place: Path, when: str) -> None:
        assert verified(place / "out") in (BEFORE, AFTER), when
        work(place)
        assert verified(place / "out") == AFTER, when
        beside = {"out"} if (place / "out").is_dir() else {"out", "out.manifest.json"}
        assert {path.name for path in place.iterdir()} == beside, when

    assert len(explore(folder, make, work, judge, fills=fills).calls) > 8


@pytest.mark.parametrize("fills", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_fetched_step_is_there_whole_or_not_at_all(
    folder: Path, tmp_path: Path, fills: int
) -> None:
    with stepped(folder / "state", 2, elements=2000):
        kept = kept_at(tmp_path / "kept", folder / "state", 2)
    with verb(str(kept)) as url:

        def work(place: Path) -> None:
            download_step(url, "latest", place / "got")

        def judge(place: Path, when: str) -> None:
            got = place / "got" / "step-2"
            if got.exists():
                assert proved(got) == 2, when
            work(place)
            assert sums(got) == sums(kept / "step-2"), when
            assert [path.name for path in (place / "got").iterdir()] == ["step-2"], when

        (folder / "fetched").mkdir()
        explored = explore(folder / "fetched", lambda place: None, work, judge, fills=fills)
    assert explored.torn >= (3 if fills == 1 else 1)
