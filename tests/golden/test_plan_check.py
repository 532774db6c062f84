"""Plans of the models that made the captures at hand, against what these captures hold."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

DATA = Path(__file__).resolve().parents[1] / "data"
JOBS = Path(__file__).resolve().parents[2] / "flowcheck" / "lab" / "jobs"
SMALL = ["layers=1", "width=16", "heads=2", "context=32"]
RECORDED = {
    "two-ranks-ll": ["--protocol", "LL", "--channels", "1", "--bucket-cap-mb", "0.005"],
    "three-ranks-simple": [
        *("--world", "3", "--protocol", "Simple", "--channels", "2", "--nccl", "2.27"),
        *("--bucket-cap-mb", "0.005"),
    ],
    "two-ranks-metric": ["--protocol", "LL", "--nccl", "2.23"],
    "four-ranks-ll128": ["--world", "4", "--protocol", "LL128", "--bucket-cap-mb", "0.005"],
}
GRADIENTS = ("iter_40000_p2p", "iter_40000_p2p_iter2", "iter_40000_p2p_iter10", "iter_80000_p2p")


@pytest.fixture(autouse=True, scope="module")
def deterministic() -> None:
    torch.manual_seed(0)


@pytest.fixture
def gpt(tmp_path: Path) -> str:
    """A factory of the lab's own model."""
    file = tmp_path / "net.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(JOBS)!r})\n"
        "from gpt_model import GPT, Shape\n"
        "def make(**sizes):\n    return GPT(Shape(**sizes))\n"
    )
    return f"{file}:make"


def planned(model: str, settings: list[str], *words: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the verb."""
    pairs = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["plan", model, *pairs, *map(str, words), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def linear(inputs: int, *words: str | Path) -> tuple[int, dict[str, Any]]:
    settings = [f"in_features={inputs}", "out_features=1", "bias=False"]
    return planned("torch.nn:Linear", settings, *words)


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_runs_are_as_planned(name: str, gpt: str) -> None:
    code, told = planned(gpt, SMALL, *RECORDED[name], "--check", DATA / f"{name}.pcapng")
    found = told["check"]
    assert (code, found["difference"]) == (0, None)
    truth = json.loads((DATA / f"{name}.json").read_text())
    assert found["iterations"] == len(truth["steps"])
    own = sum(count for _, count in found["beside"])
    assert found["held"] + own == len(truth["collectives"])
    assert found["order_told"]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--bucket-cap-mb", "0.01"], "iteration 1: bucket order"),
        (["--bucket-cap-mb", "0.005", "--static-graph"], "iteration 0: map of used parameters"),
        (
            ["--bucket-cap-mb", "0.005", "--find-unused-parameters"],
            "iteration 0: bucket 0, all_reduce of 4,544 bytes; collective #3 is all_reduce of 31,",
        ),
        (["--bucket-cap-mb", "0.005", "--hook", "bf16"], "iteration 0: bucket 0, all_reduce of 15"),
        (["--bucket-cap-mb", "0.005", "--protocol", "Simple"], "it is in LL, not in Simple"),
        (["--bucket-cap-mb", "0.005", "--world", "3"], "its ring has 2 ranks, not 3"),
        (["--dtype", "bfloat16"], "the start-up: initial weights, broadcast of 15,840 bytes"),
    ],
)
def test_another_setting_is_told_by_the_first_collective_that_differs(
    words: list[str], where: str, gpt: str
) -> None:
    code, told = planned(gpt, SMALL, *words, "--check", DATA / "two-ranks-ll.pcapng")
    assert code == 1
    assert where in told["check"]["difference"]["sentence"]


def test_another_number_of_channels_is_told(gpt: str) -> None:
    capture = DATA / "two-ranks-metric.pcapng"
    code, told = planned(gpt, SMALL, "--nccl", "2.23", "--channels", "1", "--check", capture)
    assert code == 1
    assert "initial weights" in told["check"]["difference"]["sentence"]
    assert "it is on 2 channels, not on 1" in told["check"]["difference"]["sentence"]
    assert planned(gpt, SMALL, "--nccl", "2.23", "--channels", "2", "--check", capture)[0] == 0


def test_another_shape_of_as_many_bytes_is_told_by_what_the_start_up_says(gpt: str) -> None:
    other = ["layers=1", "width=16", "heads=2", "context=33"]
    words = ("--bucket-cap-mb", "0.005", "--check", DATA / "two-ranks-ll.pcapng")
    code, told = planned(gpt, other, *words)
    assert code == 1
    assert "parameter shapes" in told["check"]["difference"]["sentence"]
    assert (
        "the integer at index 4 of its data is 32, and 33 was planned"
        in told["check"]["difference"]["sentence"]
    )


@pytest.mark.parametrize("name", ["two-ranks-ll", "three-ranks-simple"])
def test_messages_and_bytes_of_every_direction_are_those_of_the_frames(name: str, gpt: str) -> None:
    """Of a port that is mirrored in both directions; the barrier at the end is the script's."""
    _, told = planned(gpt, SMALL, *RECORDED[name])
    steps = len(json.loads((DATA / f"{name}.json").read_text())["steps"])
    parts = [told["start_up"], *told["first"], *[told["each"]] * (steps - len(told["first"]))]
    due = {way: [0, 0] for way in ("out", "in")}
    for cost in (cost for part in parts for cost in part):
        for way, sums in due.items():
            sums[0] += cost[way]["messages"]
            sums[1] += cost[way]["bytes"]
    tape = read_capture_files([DATA / f"{name}.pcapng"])
    reading = read_stream(tape.flows, tape.messages)
    barrier = reading.collectives[-1].placements
    seen = {"out": [0, 0], "in": [0, 0]}
    for flow in reading.flows:
        if flow.role == "data":
            own = [p for p in barrier if p.flow == flow.seen.key]
            way = "out" if flow.seen.key.source == "10.77.0.1" else "in"
            seen[way][0] += flow.messages - len(own)
            seen[way][1] += flow.bytes - sum(p.wire_bytes for p in own)
    assert seen == due


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_real_captures_are_as_planned(name: str, captures: Path, truth: Path) -> None:
    true = json.loads((truth / f"{name}.json").read_text())
    inputs = true["ddp_init_broadcast"]["count"]
    words = ("--protocol", "LL", "--channels", "1", "--nccl", "2.19")
    code, told = linear(inputs, *words, "--check", captures / f"{name}.pcapng")
    found = told["check"]
    assert (code, found["difference"], found["beside"]) == (0, None, [])
    assert found["iterations"] == len(true["all_reduces"])
    assert found["from_start"]
    # Rank 0's sends, without the point-to-point one after each all-reduce.
    parts = [told["start_up"], *told["first"], *[told["each"]] * 99]
    costs = [cost for part in parts for cost in part][: found["held"]]
    messages = sum(cost["out"]["messages"] for cost in costs)
    sent = [f["data_sends"] for f in true["flows"] if f["role"] == "data:LL"]
    assert sent == [messages]


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_plan_of_another_model_differs_from_the_real_captures(
    name: str, captures: Path, truth: Path
) -> None:
    other = 15_000 - json.loads((truth / f"{name}.json").read_text())["ddp_init_broadcast"]["count"]
    code, told = linear(other, "--check", captures / f"{name}.pcapng")
    assert code == 1
    assert "planned in the start-up: parameter shapes" in told["check"]["difference"]["sentence"]


@pytest.mark.parametrize("name", ["allreduce+partial_p2p_new", "allreduce_addstep"])
def test_what_is_no_training_holds_no_start_up_and_says_so(name: str, captures: Path) -> None:
    code, told = linear(5000, "--check", captures / f"{name}.pcapng")
    assert code == 0
    assert (told["check"]["held"], told["check"]["from_start"]) == (1, False)
    assert linear(10_000, "--check", captures / f"{name}.pcapng")[0] == 1
