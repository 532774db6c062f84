"""Two jobs that have nothing to do with each other on one port, through the whole chain.

The judge is the generator, which tells every gradient of both.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import preloaded
from support.cut import frames_in
from support.merged import merged
from support.netib import Generated, Options, generate
from support.staged import dealt

from flowcheck.findings.catalog.replica_update_notes import NORM_NEVER_COMES

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
IPV6 = b"\x86\xdd"
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
    code, told = replayed(capture, job, tmp_path)
    assert code == 0, told
    found = [
        [line["gradient_sha256"] for line in one["digests"]] for one in (told, *told["beside"])
    ]
    wanted = [gradients(m) for m in made]
    if job is OWN:
        assert found == wanted[::-1]
        assert (tmp_path / "out/late/step-4").is_dir() and (tmp_path / "out/early/step-4").is_dir()
    else:
        assert sorted(found) == sorted(wanted)


def replayed(capture: Path, job: str, folder: Path) -> tuple[int, dict[str, Any]]:
    (folder / "job.toml").write_text(job)
    words = ["--job", folder / "job.toml", "--out", folder / "out", "--source", "file"]
    command = ["replay", capture, "--digests", "--json", *words]
    done = preloaded.run(command, capture_output=True, text=True, timeout=110, check=False)
    told: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, told


@pytest.mark.nightly
def test_rings_that_are_clipped_together_stop_at_the_same_step(tmp_path: Path) -> None:
    long = replace(ONE, steps=7)
    made = []
    for number, options in enumerate((long, replace(long, seed=2, ipv6=True))):
        (tmp_path / str(number)).mkdir()
        made.append(generate(options, tmp_path / str(number)).files[0])
    both = merged(made, tmp_path / "both.pcap", (0, 3))
    left = int(0.7 * frames_in(made[1]))

    def deal(_: int, frame: bytes) -> int | None:
        nonlocal left
        left -= frame[12:14] == IPV6
        return None if -9 < left <= 0 and frame[12:14] == IPV6 else 0

    [capture] = dealt(both, tmp_path / "lost", 1, deal)
    clip = "clip_norm = 0.5\nclip_together = true\n"
    code, told = replayed(capture, ALIKE + clip, tmp_path)
    lost, whole = sorted((told, *told["beside"]), key=lambda one: one["lost"] is None)
    assert code == 1 and lost["lost"]["step"] in range(3, 7)
    assert [len(one["digests"]) for one in (lost, whole)] == [lost["lost"]["step"] - 1] * 2
    index = json.loads((tmp_path / "out/jobs.json").read_text())
    assert index["step"] == lost["lost"]["step"] - 1
    assert any(NORM_NEVER_COMES.code in json.dumps(note) for note in told["notes"])


@pytest.mark.nightly
def test_both_jobs_are_joined_again_behind_a_gap(tmp_path: Path) -> None:
    made = []
    for number, options in enumerate((ONE, replace(ONE, seed=2, ipv6=True))):
        (tmp_path / str(number)).mkdir()
        made.append(generate(replace(options, steps=14), tmp_path / str(number)))
    both = merged([one.files[0] for one in made], tmp_path / "both.pcap", (0, 3))
    count = frames_in(both)
    gap = range(int(0.4 * count), int(0.5 * count))
    [capture] = dealt(both, tmp_path / "gapped", 1, lambda at, _: None if at in gap else 0)
    code, told = replayed(capture, ALIKE + "[replica]\njoins = true\n", tmp_path)
    assert code == 1
    for one, truth in zip((told, *told["beside"]), made, strict=True):
        taken = [line["gradient_sha256"] for line in one["digests"]]
        assert taken == gradients(truth)[: one["lost"]["step"] - 1] and taken
    again = [note for note in told["notes"] if "and was joined again" in note["sentence"]]
    assert len(again) == 2
    assert sum(note["sentence"].startswith("job 2: ") for note in again) == 1
