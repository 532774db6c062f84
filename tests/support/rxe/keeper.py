"""Takes a cluster and a folder away as soon as whoever made them is gone, however it went.

Run as a script it waits for the end of its standard input, a pipe that a killed process closes too.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT_S = 3600.0
"""Longer than any run of these tests; whatever is left then is taken away all the same."""
DOWN_LIMIT_S = 60.0


@contextmanager
def kept(cluster: str, folder: Path) -> Iterator[None]:
    """Both, made in this block, are gone after it, and after the death of this process."""
    process = subprocess.Popen(
        [sys.executable, __file__, cluster, str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        assert process.wait(DOWN_LIMIT_S) == 0, f"cluster {cluster} was not taken down"


def _main(cluster: str, folder: Path) -> None:
    from flowcheck.lab.cluster import down

    select.select([sys.stdin], [], [], LIMIT_S)
    try:
        down(cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
