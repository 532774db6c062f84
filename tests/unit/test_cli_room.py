"""A disk without room for a run's files: one sentence, and no memory left."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOM = """
import resource, sys
import flowcheck.cli as cli, flowcheck.ops.lifecycle.up_command as up

most_bytes, when, *sys.argv[1:] = sys.argv[1:]
make = up.create_run

def create(*words):
    limits = int(most_bytes), resource.RLIM_INFINITY
    if when == "before":
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    made = make(*words)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return made

up.create_run = create
cli.main()
"""
"""`flowcheck` where files cannot grow, from before or after the making of shared memory."""


@pytest.mark.parametrize(
    ("most_bytes", "when", "named"),
    [(4, "before", "run/pids/supervisor"), (99, "before", "run"), (99, "after", "events.jsonl")],
)
def test_no_room_for_the_files_of_a_run_is_one_sentence_and_leaves_no_memory(
    tmp_path: Path, most_bytes: int, when: str, named: str
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        '[[source]]\nfile = "x"\n[ring]\nslots = 2\n[staging]\nsize_bytes = 1_048_576\n'
        '[optimizer]\nname = "sgd"\nlearning_rate = 1.0\n'
    )
    words = [sys.executable, "-c", ROOM, str(most_bytes), when, "up", str(job)]
    process = subprocess.Popen(
        [*words, "--run", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    sentence, _, remedy = err.splitlines()[-3:]  # the cause lies between
    assert sentence.endswith(f"{named}: File too large") and "`ulimit -a`" in remedy
    assert not list(Path("/dev/shm").glob(f"flowcheck-{process.pid}-*"))
    assert not (tmp_path / "run" / "memory").is_symlink()
