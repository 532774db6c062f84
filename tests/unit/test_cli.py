"""The verbs' words: help that teaches, one sentence and exit code 2 for what can be mended."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
from support import preloaded
from support.chain import Command, wait_until
from typer.core import TyperGroup
from typer.main import get_command

from flowcheck import cli
from flowcheck.config import JobConfig, OptimizerConfig, RingConfig, SourceConfig, StagingConfig
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.run_directories import NO_CHAIN_STARTED
from flowcheck.ops.lifecycle import chain_runner
from flowcheck.ops.watch.state.state_reader import StateReader

VERBS = (
    *("analyze", "plan", "replay", "up", "status", "stage", "down", "doctor"),
    *("restore", "audit"),
)


def flowcheck(*words: str | Path) -> tuple[int, str, str]:
    """The console script in this process, which has what it imports."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["flowcheck", *map(str, words)]
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", argv),
        patch.dict(os.environ, {"COLUMNS": "200"}),
    ):
        try:
            cli.main()
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


def refused(*words: str | Path) -> str:
    """What is on stderr: a sentence, its cause where the sentence does not say it, what to do."""
    code, out, err = flowcheck(*words)
    assert code == 2, out + err
    assert "Traceback" not in err
    assert err.startswith("flowcheck: "), err
    _, *below = err.splitlines()
    assert 1 <= len(below) <= 2 and all(line.startswith("  ") for line in below), err
    return err


def test_help_teaches_with_examples_and_names_every_verb() -> None:
    """As a user starts it."""
    command = [sys.executable, "-m", "flowcheck", "--help"]
    environment = os.environ | {"COLUMNS": "200"}
    out = subprocess.check_output(command, text=True, timeout=60, env=environment)
    assert "flowcheck replay capture.pcapng --optimizer adamw" in out
    assert "flowcheck up job.toml" in out
    for verb in VERBS:
        assert f"│ {verb} " in out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does_and_can_speak_to_programs(verb: str) -> None:
    code, out, _ = flowcheck(verb, "--help")
    assert code == 0
    assert "--json" in out
    assert len(out.split("Arguments")[0].split("Options")[0].strip()) > 60


PROCESSES = {
    "help": "",
    "analyze": "flowcheck.ops.analysis.analyze_command",
    "status": "flowcheck.ops.lifecycle.status_command",
    "parse": "flowcheck.stages.packet_capture.parse_stage",
    "capture": "flowcheck.stages.packet_capture.capture_stage",
    "extract": "flowcheck.stages.extraction.extract_stage",
    "persist": "flowcheck.stages.checkpointing.persist_stage",
    "serve": "flowcheck.stages.checkpointing.serve_stage",
    "top": "flowcheck.ops.watch.top_command",
    "watch": "flowcheck.ops.watch.monitoring_server",
    "up": "flowcheck.ops.lifecycle.up_command",
}
"""What each imports, one behind the other: none may bring what those before it do without."""
HEAVY = {"torch", "safetensors", "scipy", "scapy", "matplotlib", "jinja2", "fsspec", "pyroute2"}


def test_only_what_steps_a_replica_loads_torch() -> None:
    script = (
        "import importlib, sys, typer.testing, flowcheck.cli as cli\n"
        "typer.testing.CliRunner().invoke(cli.app, ['--help'])\n"
        f"for name, module in {PROCESSES!r}.items():\n"
        "    importlib.import_module(module or 'flowcheck')\n"
        f"    print(name, *sorted({HEAVY | {'zmq'}!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    told = dict((line + " ").split(" ", 1) for line in done.stdout.splitlines())
    sockets = [*PROCESSES][[*PROCESSES].index("parse") :]
    assert {name: loaded.split() for name, loaded in told.items()} == {
        name: ["zmq"] if name in sockets else [] for name in PROCESSES
    }


def test_stages_that_take_packets_load_neither_numpy_nor_the_words_of_all_verbs() -> None:
    """Each of them loads before the first frame can be captured."""
    script = (
        "import sys, flowcheck.stages.supervisor.stage_main\n"
        "from flowcheck.stages.packet_capture import capture_stage, parse_stage\n"
        f"print(*sorted({HEAVY | {'numpy', 'typer', 'rich'}!r} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout == "\n"
    words = [sys.executable, "-m", "flowcheck", "stage", "moon", "--run", "/none", "--parent", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("flowcheck: /none: no chain was started there")
    assert done.stderr.count("\n") == 3


def test_a_capture_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    assert "absent.pcap" in refused("replay", tmp_path / "absent.pcap")


@pytest.mark.parametrize(
    "content", [b"", b"no capture at all, only text\n" * 9, b"\xd4\xc3\xb2\xa1"]
)
def test_a_foreign_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "foreign.pcap"
    file.write_bytes(content)
    assert "foreign.pcap" in refused("replay", file)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--source", "radio"), "--source = 'radio': no such source\n  Give auto, dpdk or file"),
        (
            ("--optimizer", "madgrad"),
            "--optimizer = 'madgrad': not a class of torch.optim in torch",
        ),
        (("--speed", "nan"), "--speed = nan: must be above 0"),
    ],
)
def test_a_word_that_cannot_be_is_refused_with_those_that_can(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    capture = tmp_path / "empty.pcap"
    header = "d4c3b2a1020004000000000000000000000004000100 0000".replace(" ", "")
    capture.write_bytes(bytes.fromhex(header))
    assert sentence in refused("replay", capture, *words)
    comma = capture.rename(tmp_path / "a,b.pcap")
    assert "no path with a comma" in refused("replay", comma, "--source", "dpdk")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("replay", "CAPTURE", "--lr", "-1"), "--lr = -1.0: must be 0 or more"),
        (("replay", "CAPTURE", "--lr=nan"), "--lr = nan: must be a finite number"),
        (("replay", "CAPTURE", "--jobs", "70"), "--jobs = 70: must be from 1 to 64"),
        (("watch", "--listen", "nowhere"), "--listen = 'nowhere': not an address and a port"),
        (("watch", "--listen", "0.0.0.0:1"), "need a token\n  State --token-file, or"),
        (("watch", "--token-file", "none"), "--token-file = 'none': cannot be read"),
        (("serve", "FOLDER", "--host", "0.0.0.0"), "need a token\n  State --token-file, or"),
        (("serve", "FOLDER", "--tls-key", "k"), "--tls-key = 'k': needs --tls-certificate"),
        (("lab", "train", "--hosts", "1"), "--hosts = 1: must be 2 to 64"),
        (("status", "--run", "/none"), "flowcheck: /none: no chain was started there"),
    ],
)
def test_an_error_about_what_was_typed_names_the_option(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    capture = tmp_path / "empty.pcap"
    capture.write_bytes(bytes.fromhex("d4c3b2a1020004000000000000000000000004000100" + "0000"))
    known = {"CAPTURE": str(capture), "FOLDER": str(tmp_path)}
    assert sentence in refused(*(known.get(word, word) for word in words))


def test_a_setting_of_the_job_file_keeps_its_key_beside_an_option(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[[source]]\nfile = "x"\n[optimizer]\nname = "sgd"\nlearning_rate = -1.0\n')
    said = refused("up", job, "--run", tmp_path / "run")
    assert "optimizer.learning_rate = -1.0" in said


@pytest.mark.parametrize("verb", ["audit", "base"])
def test_a_checkpoint_is_taken_as_argument_or_as_option(tmp_path: Path, verb: str) -> None:
    run, file = ("--run", tmp_path / "run"), tmp_path / "step-4.pt"
    for words in ((file,), ("--checkpoint", file), (file, "--checkpoint", file)):
        assert "no chain was started there" in refused(verb, *words, *run)
    assert f"flowcheck {verb} runs/step-400.pt" in refused(verb, *run)
    twice = refused(verb, file, "--checkpoint", tmp_path / "other", *run)
    assert "Name only one" in twice and str(file) in twice


def test_what_is_no_amount_of_memory_is_one_sentence() -> None:
    assert "--need-gib = nan: must be 0 or more" in refused("doctor", "--need-gib", "nan")


def test_a_job_file_that_nests_without_end_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("a = " + "[" * 5000)
    assert "is not valid TOML" in refused("plan", tmp_path / "job.toml")


def test_a_job_file_with_a_wrong_key_is_refused_before_anything_starts(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[[source]]\nfile = "x"\n[optimizer]\nname = "sgd"\nlearnig_rate = 1.0\n')
    assert "did you mean optimizer.learning_rate?" in refused("up", job, "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_schedule_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        '[[source]]\nfile = "x"\n[optimizer]\nname = "sgd"\nlearning_rate = 1.0\n'
        f'schedule = "{tmp_path}/nofile.py:f"\n'
    )
    capture = tmp_path / "empty.pcap"
    capture.write_bytes(bytes.fromhex("d4c3b2a1020004000000000000000000000004000100") + bytes(2))
    out, run = tmp_path / "out", tmp_path / "run"
    for words in (("up", job, "--run", run), ("replay", capture, "--job", job, "--out", out)):
        assert f"there is no file {tmp_path}/nofile.py" in refused(*words)
    assert not run.exists() and not out.exists()


def test_a_ring_larger_than_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        '[[source]]\nfile = "x"\n[ring]\nslots = 67_108_864\nslot_bytes = 65_536\n'
        '[optimizer]\nname = "sgd"\nlearning_rate = 1.0\n'
    )
    code, _, err = flowcheck("up", job, "--run", tmp_path / "run")
    *_, sentence, _, remedy = err.splitlines()  # before it, what killed chains left here
    assert code == 2
    assert "ring.slots = 67108864" in sentence
    assert "Lower `slots`" in remedy
    assert "`flowcheck plan JOB.toml` shows the sum line by line." in remedy


@pytest.mark.parametrize("verb", [("status",), ("stage", "parse")])
def test_a_run_that_was_never_started_is_one_sentence(
    tmp_path: Path, verb: tuple[str, ...]
) -> None:
    sentence = refused(*verb, "--run", tmp_path / "nowhere")
    assert "no chain was started there: nothing" in sentence


def test_a_run_that_is_being_started_is_told_as_that_until_the_start_is_over(
    tmp_path: Path,
) -> None:
    """The start waits for the user's model, and is refused by it."""
    (tmp_path / "net.py").write_text(
        "import os, time\n"
        "def make():\n"
        f"    while not os.path.exists('{tmp_path}/go'):\n"
        "        time.sleep(0.01)\n"
        "    raise OSError\n"
    )
    (tmp_path / "job.toml").write_text(
        f'[[source]]\nfile = "x"\n[optimizer]\nname = "sgd"\nlearning_rate = 1.0\n'
        f'[model]\nfactory = "{tmp_path}/net.py:make"\n'
    )
    tmp_path.chmod(0o755)
    run = tmp_path / "run"
    with Command("up", tmp_path / "job.toml", "--run", run) as up:

        def told() -> bool:
            found = {verb: refused(verb, "--run", run) for verb in ("status", "down")}
            return all("a chain is being started there" in one for one in found.values())

        wait_until(told, 60.0, "the start is told")

        def shown() -> bool:
            return "being started" in str(StateReader(run).state().health.reason)

        # Not while a start that root made begins again as another user.
        wait_until(shown, 60.0, "the start is shown")
        (tmp_path / "go").touch()
        assert up.result()[0] == 2
    assert "no chain was started there" in refused("status", "--run", run)
    assert "nothing to stop" in refused("down", "--run", run)
    assert not run.exists() or not list(run.iterdir())


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    capture = tmp_path / "empty.pcap"
    capture.write_bytes(bytes.fromhex("d4c3b2a1020004000000000000000000000004000100") + bytes(2))
    assert "file/out: Not a directory" in refused("replay", capture, "--out", in_the_way / "out")


def test_a_folder_that_is_not_there_is_not_made_for_a_restored_step(tmp_path: Path) -> None:
    out = tmp_path / "nodir" / "out.pt"
    words = ("--run", tmp_path / "run", "--template", tmp_path / "step-0.pt", "--out", out)
    assert f"there is no folder {out.parent}" in refused("restore", *words)
    assert not out.parent.exists()


@pytest.mark.parametrize("name", ["nowhere", "file", "folder", "file/below"])
def test_down_where_no_chain_was_started_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own").touch()
    code, out, err = flowcheck("down", "--run", tmp_path / name, "--json")
    assert (code, out) == (2, "")
    error = json.loads(err)
    assert error["finding"]["code"] == "run.nothing_to_stop" and error["remedy"]
    assert error["finding"]["arguments"] == {"run": str(tmp_path / name)}
    assert (tmp_path / "folder" / "own").exists()


def test_down_of_a_run_that_is_down_is_no_error(tmp_path: Path) -> None:
    config = JobConfig(
        source=(SourceConfig(file="x"),),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
        ring=RingConfig(slots=64, slot_bytes=256),
        staging=StagingConfig(size_bytes=1 << 20),
    )
    run, _ = chain_runner.create_run(config, tmp_path / "run")
    run.pids.joinpath("supervisor").unlink()
    told = []
    for _ in range(3):
        code, out, err = flowcheck("down", "--run", run.root, "--json")
        assert code == 0, err
        told.append(json.loads(out)["removed"])
    assert told == [True, False, False]


def test_down_that_names_no_run_frees_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["flowcheck.cli.main"], "DEFAULT_RUN", tmp_path / "nowhere")
    code, out, _ = flowcheck("down", "--json")
    assert (code, json.loads(out)["ended"]) == (0, [])


def test_a_run_directory_too_deep_for_sockets_is_one_sentence(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    job = tmp_path / "job.toml"
    job.write_text(
        '[[source]]\nfile = "x"\n[ring]\nslots = 2\n[staging]\nsize_bytes = 1_048_576\n'
        '[optimizer]\nname = "sgd"\nlearning_rate = 1.0\n'
    )
    command = ["up", str(job), "--run", str(deep)]
    done = preloaded.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "a socket in it is longer than 107 bytes" in done.stderr


def test_all_our_errors_are_of_one_family() -> None:
    from flowcheck import errors

    kinds = [
        k for k in vars(errors).values() if isinstance(k, type) and k.__module__ == errors.__name__
    ]
    assert len(kinds) >= 7
    assert all(issubclass(kind, FlowCheckError) for kind in kinds)


def test_a_folder_for_a_capture_is_one_sentence(tmp_path: Path) -> None:
    assert "is a folder, not a capture file\n  Name the capture files in it" in refused(
        "analyze", tmp_path
    )


def test_status_of_nothing_is_json_for_programs(tmp_path: Path) -> None:
    code, out, err = flowcheck("status", "--run", tmp_path / "nowhere", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["finding"]["code"] == NO_CHAIN_STARTED.code


def test_of_the_parsers_only_that_of_the_command_is_made() -> None:
    def made() -> set[str]:
        group = get_command(cli.app)
        assert isinstance(group, TyperGroup)
        return set(group.commands)

    every = made()
    for name in every:
        with cli.app.only_named([name, "--help"]):
            assert made() == {name}
    with cli.app.only_named(["no-such-command"]):
        assert made() == every
    assert made() == every


def test_a_chain_comes_up_without_what_learns_jobs_and_without_torch() -> None:
    """Each would be loaded before a stage is started."""
    code = "import sys, flowcheck.cli, flowcheck.ops.lifecycle.up_command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "flowcheck.wire.learn"} & set(done.stdout.split())
