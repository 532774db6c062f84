"""Two jobs that have nothing to do with each other on one port, through the whole chain.

The judge is the generator, which tells every gradient of both.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.merged import merged
from support.netib import Generated, Options, generate

ONE = Options(shapes=((40, 30), (40,)), version=(2, 30), steps=4, random_qpns=True)
OWN = """
[[job]]
name = "late"
hosts = ["fd00::1"]
[job.optimizer]
name = "sgd"
learning_rate = 0.1
[[job]]
name = "early"
hosts = ["10.0.0.1"]
[job.optimizer]
name = "adam"
learning_rate = 0.1
"""
ALIKE = 'jobs = 2\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'


def gradients(made: Generated) -> list[str]:
    """sha256 of each step's, in registration order; all are of one bucket, turned round once the
    order in which they are ready is known."""
    first = 4 * 40 * 30
    found = []
    for step, each in enumerate(made.truth.gradients):
        own = each.result
        found.append(own if not step else own[len(own) - first :] + own[: len(own) - first])
    return [hashlib.sha256(own).hexdigest() for own in found]


@pytest.mark.parametrize(
    ("two", "later_us", "job"),
    [
        pytest.param(
            replace(ONE, seed=2, ipv6=True), 3, OWN, id="named", marks=pytest.mark.nightly
        ),
        pytest.param(
            replace(ONE, seed=2, ipv6=True), 3, ALIKE, id="beside", marks=pytest.mark.nightly
        ),
        pytest.param(
            replace(ONE, seed=2), 90_000_000, ALIKE, id="later", marks=pytest.mark.nightly
        ),
    ],
)
def test_each_job_has_a_replica_of_its_own(
    tmp_path: Path, two: Options, later_us: int, job: str
) -> None:
    made = []
    for number, options in enumerate((ONE, two)):
        (tmp_path / str(number)).mkdir()
        made.append(generate(options, tmp_path / str(number)))
    capture = merged([m.files[0] for m in made], tmp_path / "both.pcap", (0, later_us))
    (tmp_path / "job.toml").write_text(job)
    words = ["--job", tmp_path / "job.toml", "--out", tmp_path / "out", "--source", "file"]
    command = [sys.executable, "-m", "flowcheck", "replay", capture, "--digests", "--json", *words]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    found = [
        [line["gradient_sha256"] for line in one["digests"]] for one in (told, *told["beside"])
    ]
    wanted = [gradients(m) for m in made]
    if job is OWN:
        assert found == wanted[::-1]
        assert (tmp_path / "out/late/step-4").is_dir() and (tmp_path / "out/early/step-4").is_dir()
    else:
        assert sorted(found) == sorted(wanted)
