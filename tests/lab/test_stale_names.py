"""Namespaces of killed tests go at the next start; those that anybody may still need stay."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.stale import FOLDER, dead, sweep

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]


def ip(*words: str) -> str:
    command = ["ip", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout


@contextmanager
def made(*names: str) -> Iterator[None]:
    for name in names:
        ip("netns", "add", name)
    try:
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_only_names_of_dead_makers_without_anybody_inside_go() -> None:
    gone, lived_in, living = f"fcthosts{dead()}", f"fcthosts{dead()}", f"fcthosts{os.getpid()}"
    pair = f"fctest{dead()}"
    others = (f"fcl-t{dead()}-h0", f"my{gone}-0", f"{gone}-0-mine", "fcthosts-0")
    stay = (f"{lived_in}-0", f"{living}-0", *others)
    with (
        made(f"{gone}-0", f"{gone}-sw", pair, *stay),
        subprocess.Popen(["ip", "netns", "exec", f"{lived_in}-0", "sleep", "60"]) as inside,
    ):
        try:
            while ip("netns", "identify", str(inside.pid)).strip() != f"{lived_in}-0":
                assert inside.poll() is None
            (FOLDER / f"{gone}-1").touch()  # what is left of a name whose mount is gone
            sweep()
            there = {path.name for path in FOLDER.iterdir()}
            assert set(stay) <= there
            assert not [name for name in there - set(stay) if name.startswith((gone, pair))]
        finally:
            inside.kill()
        inside.wait()
        sweep()
        assert not (FOLDER / f"{lived_in}-0").exists()
