"""What `flowcheck lab` cannot run is refused in one sentence before anything is made."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowcheck.errors import FlowCheckError
from flowcheck.lab import cluster
from flowcheck.lab.cli import app
from flowcheck.lab.job_run import run_plan, training_script
from flowcheck.lab.recording import job_recording
from flowcheck.lab.restore_drill import kill_restore_drill
from flowcheck.lab.training_cost.cost_figures import CASES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody makes a cluster here."""

    def made(*_: Any) -> None:
        raise AssertionError("a cluster is made")

    monkeypatch.setattr(cluster, "up", made)
    monkeypatch.setattr(cluster, "down", made)
    monkeypatch.setattr(cluster, "reserved", lambda name: nullcontext())
    return tmp_path / "out"


def refusal(folder: Path, words: str) -> str:
    """What the lab says to this command line; nothing is written."""
    verb, *rest = words.split()
    ended = CliRunner().invoke(app, [verb, "--out", str(folder), *rest])
    assert isinstance(ended.exception, FlowCheckError), ended.exception
    assert not folder.exists()
    return str(ended.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train -- --steps 16", "--steps before `--`"),
        ("train -- --step=16", "--steps before `--`"),
        ("train -- --out elsewhere", "--out before `--`"),
        ("train -- --resume a.pt", "--kill-at before `--`"),
        ("train -- --stop-at 3", "--steps before `--`"),
        ("train -- --digests x", "names that file itself"),
        ("train -- --backend gloo", "no backend's traffic but"),
        ("train -- --save-with dcp", "torch.save"),
        ("cost -- --save-every 2", "cases"),
        ("record -- --steps 16", "--steps before `--`"),
        ("train -- --frobnicate 3", "unrecognized arguments: --frobnicate"),
        ("train --algo Tree", "--hosts = 2: trees need 3 hosts or more"),
        ("train --kill-at 3 --no-kill", "--kill-at = 3: contradicts --no-kill"),
        ("train --kill-at 3 --join-at 5", "--kill-at = 3: contradicts --join-at"),
        ("train --jobs 2 --join-at 5", "cannot be combined with --join-at or --gap-at"),
        ("train --jobs 0", "--jobs = 0: "),
        ("train --jobs 2 --hosts 40", "hosts = 80"),
        ("train --algo Star", "algo = 'Star'"),
        ("record --tree-below -4", "tree-below = '-4'"),
        ("train --protocl LL", "unrecognized arguments: --protocl"),
    ],
)
def test_options_the_lab_decides_are_not_the_script_s(folder: Path, words: str, said: str) -> None:
    assert said in refusal(folder, words)


def test_other_options_of_the_script_pass() -> None:
    others = ["--clip", "1", "--layers", "2", "--sgd", "--seed", "9"]
    for verb in training_script.LAB_DECIDES:
        training_script.check_arguments(verb, others)
        with pytest.raises(FlowCheckError, match="--steps"):
            training_script.check_arguments(verb, [*others, "--steps", "2"])
    training_script.check_arguments("train", ["--save-every", "2"])


def test_every_option_the_lab_passes_is_refused_to_its_user() -> None:
    sources = [run_plan.__file__, kill_restore_drill.__file__, job_recording.__file__]
    for verb, named in (("train", sources[:2]), ("record", sources[::2])):
        text = "".join(re.findall(r"script\(.*|more = .*|digests = .*|out = .*", _text(named)))
        passed = set(re.findall(r'"--([a-z-]+)"', text))
        assert passed >= {"steps", "out", "digests"}
        assert passed <= set(training_script.LAB_DECIDES[verb])
    of_cases = {word[2:] for case in CASES for word in case.arguments if word.startswith("--")}
    assert of_cases <= set(training_script.LAB_DECIDES["cost"])


def _text(paths: list[str]) -> str:
    return "\n".join(Path(path).read_text() for path in paths)


@pytest.mark.parametrize("verb", ["train", "record"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--protocol foo", "protocol = 'foo'"),
        ("--nccl 2.18", "2.19 to 2.30"),
        ("--channels 0", "from 1 to 32"),
        ("--channels 33", "from 1 to 32"),
        ("--mtu 1500", "4200 or 9000"),
        ("--switch hub", "bridge or ovs"),
        ("--mirror p7:rx", "p0 to p1"),
        ("--hosts 1", "2 to 64"),
        ("--steps 0", "1 or more"),
    ],
)
def test_settings_no_trainer_would_take_are_refused_at_once(
    folder: Path, verb: str, words: str, said: str
) -> None:
    assert said in refusal(folder, f"{verb} {words}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--kill-at 0", "kill-at = 0: 1 to 39"),
        ("--kill-at -1", "kill-at = -1: 1 to 39"),
        ("--steps 9 --kill-at 9", "kill-at = 9: 1 to 8"),
        ("--steps 1", "2 or more"),
        ("--loss 1", "from 0 to less than 1"),
        ("--loss -0.1", "from 0 to less than 1"),
    ],
)
def test_a_kill_leaves_a_step_before_it_and_one_after(folder: Path, words: str, said: str) -> None:
    assert said in refusal(folder, f"train {words}")
