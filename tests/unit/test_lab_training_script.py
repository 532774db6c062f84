"""What `flowcheck lab` cannot run is refused in one sentence before anything is made."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.refused_as import Like, Wanted, like, refused_as, says
from typer.testing import CliRunner

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog import refused_lab_options as options
from flowcheck.findings.catalog.lab_runs import OPTION_DECIDED
from flowcheck.findings.catalog.refused_lab_options import NCCL_VERSION, SCRIPT_REFUSES
from flowcheck.findings.catalog.refused_options import JOBS_FROM_START, KILL_CONTRADICTS, TREE_HOSTS
from flowcheck.findings.catalog.refused_settings import AT_LEAST
from flowcheck.lab import cluster
from flowcheck.lab.cli import app
from flowcheck.lab.job_run import run_plan, training_script
from flowcheck.lab.recording import job_recording
from flowcheck.lab.restore_drill import kill_restore_drill
from flowcheck.lab.training_cost.cost_statistics import CASES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody makes a cluster here."""

    def made(*_: Any) -> None:
        raise AssertionError("a cluster is made")

    monkeypatch.setattr(cluster, "up", made)
    monkeypatch.setattr(cluster, "down", made)
    monkeypatch.setattr(cluster, "reserved", lambda name: nullcontext())
    return tmp_path / "out"


def refused(folder: Path, words: str, wanted: Wanted) -> None:
    """The lab does not run this command line, for that reason; nothing is written."""
    verb, *rest = words.split()
    ended = CliRunner().invoke(app, [verb, "--out", str(folder), *rest])
    assert isinstance(ended.exception, FlowCheckError), ended.exception
    assert not folder.exists()
    assert says(ended.exception.finding, wanted), ended.exception.finding


def decided(option: str, instead: str, verb: str = "train") -> Like:
    """instead: a pattern of what may be stated in the option's place."""
    return like(OPTION_DECIDED, option=option, verb=verb, instead=re.compile(instead))


def contradicted(option: str) -> Like:
    return like(KILL_CONTRADICTS, key="--kill-at", value="3", option=option)


def unrecognized(words: str) -> Like:
    """argparse's own words, of the script's parser and of the lab's."""
    return like(
        SCRIPT_REFUSES, key="arguments", text=re.compile(f"unrecognized arguments: {words}")
    )


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("train -- --steps 16", decided("steps", "--steps before `--`")),
        ("train -- --step=16", decided("steps", "--steps before `--`")),
        ("train -- --out elsewhere", decided("out", "--out before `--`")),
        ("train -- --resume a.pt", decided("resume", "--kill-at before `--`")),
        ("train -- --stop-at 3", decided("stop-at", "--steps before `--`")),
        ("train -- --digests x", decided("digests", "names that file itself")),
        ("train -- --backend gloo", decided("backend", "no backend's traffic but")),
        ("train -- --save-with dcp", decided("save-with", "torch.save")),
        ("cost -- --save-every 2", decided("save-every", "cases", verb="cost")),
        ("record -- --steps 16", decided("steps", "--steps before `--`", verb="record")),
        ("train -- --frobnicate 3", unrecognized("--frobnicate")),
        ("train --algo Tree", like(TREE_HOSTS, key="--hosts", value="2", least=3)),
        ("train --kill-at 3 --no-kill", contradicted("--no-kill")),
        ("train --kill-at 3 --join-at 5", contradicted("--join-at")),
        ("train --jobs 2 --join-at 5", JOBS_FROM_START),
        ("train --mirror-loss 1", like(options.PROBABILITY, key="mirror-loss", value="1.0")),
        ("train --mirror-loss -0.1", like(options.PROBABILITY, key="mirror-loss", value="-0.1")),
        ("train --mirror-loss nan", like(options.PROBABILITY, key="mirror-loss", value="nan")),
        (
            "train --mirror-loss 0.1 --mirror-loss-from 0",
            like(options.STEP_OF_RUN, key="mirror-loss-from"),
        ),
        ("train --save-every 0", like(options.AT_LEAST_ONE, key="save-every", value="0")),
        ("train -- --saves x", decided("saves", "names that folder itself")),
        ("train --jobs 0", like(AT_LEAST, key="--jobs", value="0")),
        ("train --jobs 2 --hosts 40", like(options.WITHIN, key="--jobs", value="2")),
        ("train --algo Star", like(options.NCCL_ALGORITHM, key="algo", value="'Star'")),
        ("record --tree-below -4", like(options.WHOLE_NUMBER, key="tree-below", value="'-4'")),
        ("train --protocl LL", unrecognized("--protocl")),
        ("train --gpus-per-host 0", like(options.WITHIN, key="gpus-per-host", value="0")),
        (
            "train --gpus-per-host 4 --nics-per-host 3",
            like(options.NICS_SHARED_OUT, key="nics-per-host", value="3", gpus=4),
        ),
        ("record --nics-per-host 2", like(options.NICS_SHARED_OUT, key="nics-per-host", gpus=1)),
        (
            "record --algo NVLSTree",
            like(options.NVLS_NEEDS, key="gpus-per-host", gpus=2, nics=2, minor=29),
        ),
        (
            "train --gpus-per-host 2 --nvls-from 5 --nccl 2.27",
            like(options.NVLS_NEEDS, key="gpus-per-host", gpus=3, nics=1, minor=27),
        ),
        (
            "train --gpus-per-host 4 --algorithm nvlstree",
            like(options.NVLS_NEEDS, key="nics-per-host", gpus=2, nics=2, minor=29),
        ),
        (
            "record --gpus-per-host 2 --nics-per-host 2 --algo NVLSTree --protocol LL",
            like(options.NVLS_IS_SIMPLE, key="protocol"),
        ),
    ],
)
def test_options_the_lab_decides_are_not_the_script_s(
    folder: Path, words: str, wanted: Wanted
) -> None:
    refused(folder, words, wanted)


def test_other_options_of_the_script_pass() -> None:
    others = ["--clip", "1", "--layers", "2", "--sgd", "--seed", "9"]
    for verb in training_script.OPTIONS_SET_BY_LAB:
        training_script.check_arguments(verb, others)
        with refused_as(
            OPTION_DECIDED, kind=FlowCheckError, option="steps", instead=re.compile("--steps")
        ):
            training_script.check_arguments(verb, [*others, "--steps", "2"])
    training_script.check_arguments("train", ["--save-every", "2"])


def test_every_option_the_lab_passes_is_refused_to_its_user() -> None:
    sources = [run_plan.__file__, kill_restore_drill.__file__, job_recording.__file__]
    for verb, named in (("train", sources[:2]), ("record", sources[::2])):
        text = "".join(re.findall(r"script\(.*|more = .*|digests = .*|out = .*", _text(named)))
        passed = set(re.findall(r'"--([a-z-]+)"', text))
        assert passed >= {"steps", "out", "digests"}
        assert passed <= set(training_script.OPTIONS_SET_BY_LAB[verb])
    of_cases = {word[2:] for case in CASES for word in case.arguments if word.startswith("--")}
    assert of_cases <= set(training_script.OPTIONS_SET_BY_LAB["cost"])


def _text(paths: list[str]) -> str:
    return "\n".join(Path(path).read_text() for path in paths)


@pytest.mark.parametrize("verb", ["train", "record"])
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--protocol foo", like(options.NCCL_PROTOCOL, key="protocol", value="'foo'")),
        ("--algo foo", like(options.NCCL_ALGORITHM, key="algo", value="'foo'")),
        (
            f"--hosts 3 --tree-below {(1 << 62) + 1}",
            options.WHOLE_NUMBER(least=0, most=1 << 62),
        ),
        ("--nccl 2.18", options.NCCL_VERSION(least=19, most=30)),
        ("--channels 0", options.WHOLE_NUMBER(least=1, most=32)),
        ("--channels 33", options.WHOLE_NUMBER(least=1, most=32)),
        ("--mtu 1500", options.MTU_CHOICES(4200, 9000)),
        ("--switch hub", options.SWITCH_KIND),
        ("--mirror p7:rx", options.MIRROR_OF_HOST(last=1)),
        ("--hosts 1", options.WITHIN(least=2, most=64)),
        ("--steps 0", options.AT_LEAST_ONE),
    ],
)
def test_settings_no_trainer_would_take_are_refused_at_once(
    folder: Path, verb: str, words: str, wanted: Wanted
) -> None:
    refused(folder, f"{verb} {words}", wanted)


def test_what_an_option_must_be_is_what_a_trainer_takes() -> None:
    """The limits that an error states are those at which a trainer begins to refuse."""
    assert set(run_plan.TRAINER_TAKES) == set(run_plan.READ_BY_TRAINERS)
    assert run_plan.TRAINER_TAKES["nccl"].is_any_of(NCCL_VERSION)
    for option, right in run_plan.TRAINER_TAKES.items():
        if "least" not in right.arguments:
            continue
        least, most = right.arguments["least"], right.arguments["most"]
        assert isinstance(least, int) and isinstance(most, int)
        for number in (least - 1, least, most, most + 1):
            told = f"2.{number}" if option == "nccl" else str(number)
            variable = run_plan.READ_BY_TRAINERS[option]
            refuses = nullcontext() if least <= number <= most else pytest.raises(ConfigError)
            with refuses:
                run_plan._as_a_trainer_reads(option, variable, told)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--kill-at 0", like(options.KILL_AT, key="kill-at", value="0", most=39)),
        ("--kill-at -1", like(options.KILL_AT, key="kill-at", value="-1", most=39)),
        ("--steps 9 --kill-at 9", like(options.KILL_AT, key="kill-at", value="9", most=8)),
        ("--steps 1", options.KILL_NEEDS_STEPS),
        ("--gap-at 40", like(options.STEP_OF_RUN, key="gap-at", value="40", most=39)),
        ("--gap-at -3", like(options.STEP_OF_RUN, key="gap-at", value="-3", most=39)),
        ("--join-at 0", like(options.STEP_OF_RUN, key="join-at", value="0", most=39)),
        (
            "--steps 9 --mirror-loss 0.1 --mirror-loss-from 9",
            like(options.STEP_OF_RUN, key="mirror-loss-from", value="9", most=8),
        ),
        ("--mirror-loss-from 3", like(options.NEEDS_MIRROR_LOSS, key="--mirror-loss-from")),
        ("--mirror-loss-seed 3", like(options.NEEDS_MIRROR_LOSS, key="--mirror-loss-seed")),
        ("--mirror-loss 0.1 --mirror-loss-seed -1", options.WHOLE_NUMBER),
        ("--jobs 1000", like(options.WITHIN, key="--jobs", value="1000")),
        ("--loss 1", options.PROBABILITY),
        ("--loss -0.1", options.PROBABILITY),
    ],
)
def test_a_kill_leaves_a_step_before_it_and_one_after(
    folder: Path, words: str, wanted: Wanted
) -> None:
    refused(folder, f"train {words}", wanted)
