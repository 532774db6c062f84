"""An error of a command with --json is a JSON object on stderr, for programs."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli import flowcheck, refused

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.run_directories import FOUND_EMPTY, FOUND_NOTHING, NO_CHAIN_STARTED
from flowcheck.findings.finding import entries
from flowcheck.ops.command_errors import exit_on_error
from flowcheck.ops.json_option import asks_for_json

PAGE = Path(__file__).resolve().parents[2] / "flowcheck" / "ops" / "lifecycle" / "README.md"


def error_of(*words: str | Path) -> dict[str, Any]:
    """The object on stderr of a command that is refused; stdout has no document."""
    code, out, err = flowcheck(*words)
    assert (code, out) == (2, ""), err
    return told(err)


def told(err: str) -> dict[str, Any]:
    """Its last line; every other line of stderr is for people."""
    assert err.endswith("}\n")
    line: dict[str, Any] = json.loads(err.splitlines()[-1])
    assert (line["level"], line["exit_code"]) == ("error", 2)
    assert line["message"] == line["finding"]["sentence"] != ""
    assert line["finding"]["code"] in entries()
    return line


@pytest.mark.parametrize(
    ("words", "key", "code", "arguments"),
    [
        (("doctor", "--need-gib", "nan"), "--need-gib", "option.memory_size", {"most": 1 << 20}),
        (("plan", "net.py:make", "--world", "1"), "--world", "plan.two_ranks", {}),
        (("up", "/dev/null/none.toml"), "job file", "setting.file_unreadable", None),
        (
            ("switch", "render", "--os", "eox", "--source", "a"),
            "--os",
            "mirror_session.did_you_mean",
            None,
        ),
    ],
)
def test_what_a_setting_must_be_is_a_code_with_arguments(
    words: tuple[str, ...], key: str, code: str, arguments: dict[str, int] | None
) -> None:
    finding = error_of(*words, "--json")["finding"]
    assert (finding["code"], finding["arguments"]["key"]) == ("setting.refused", key)
    right = finding["arguments"]["right"]
    assert right["code"] == code
    if arguments is not None:
        assert right["arguments"] == arguments


@pytest.mark.parametrize(
    "words",
    [
        ("stage", "parse"),
        ("audit", "/none.pt"),
        ("base", "/none.pt"),
        ("status", "--svg", "x.svg"),
        ("serve",),
        ("restore", "--format", "torch", "--out", "/x.pt"),
    ],
)
def test_a_missing_chain_is_an_error_of_its_own(words: tuple[str, ...]) -> None:
    code, _, err = flowcheck(*words, "--run", "/none", "--json")
    finding = told(err)["finding"]
    assert (code, finding["code"]) == (2, "run.no_chain_started")
    assert finding["arguments"]["run"] == "/none"
    assert finding["arguments"]["found"]["code"] == "run.found_nothing"


@pytest.mark.parametrize(
    ("words", "code", "arguments"),
    [
        (("doctor", "--frob"), "usage.unknown_option", {"option": "--frob"}),
        (
            ("analyze",),
            "usage.missing_parameter",
            {"parameter": "files", "metavar": "FILE...", "usage": "FILE..."},
        ),
        (
            ("switch", "check", "--os", "eos"),
            "usage.missing_parameter",
            {
                "parameter": "--source",
                "metavar": "PORT[:rx|tx|both]",
                "usage": "--source PORT[:rx|tx|both]",
            },
        ),
        (
            ("restore", "--format", "torch"),
            "usage.missing_parameter",
            {"parameter": "--out", "metavar": "OUT", "usage": "--out OUT"},
        ),
        (("replay", "x", "--speed", "fast"), "usage.wrong_parameter", {"parameter": "--speed"}),
        (("replay", "x", "--lr", "abc"), "usage.wrong_parameter", {"parameter": "--lr"}),
        (("replay", "x", "--jobs", "0"), "usage.wrong_parameter", {"parameter": "--jobs"}),
        (("doctr",), "usage.unknown_command", {"word": "doctr", "near": ["flowcheck doctor"]}),
        (
            ("lab", "recrod"),
            "usage.unknown_command",
            {"word": "recrod", "command": "flowcheck lab", "near": ["flowcheck lab record"]},
        ),
        (("doctor", "again"), "usage.refused", {"command": "flowcheck doctor"}),
    ],
)
def test_a_command_line_that_cannot_be_read_is_a_code_too(
    words: tuple[str, ...], code: str, arguments: dict[str, object]
) -> None:
    line = error_of(*words, "--json")
    finding = line["finding"]
    assert finding["code"] == code
    assert finding["arguments"].items() >= arguments.items()
    command = finding["arguments"]["command"]
    assert command.split()[0] == "flowcheck" and f"`{command} --help`" in line["remedy"]
    code_of_people, out, err = flowcheck(*words)
    assert (code_of_people, out) == (2, "")
    assert err.splitlines() == [f"flowcheck: {line['message']}", f"  {line['remedy']}"]


@pytest.mark.parametrize(
    ("option", "value", "right", "arguments"),
    [
        ("--lr", "abc", "usage.not_a_number", {}),
        ("--jobs", "2.5", "usage.not_a_whole_number", {}),
        ("--jobs", "0", "setting.at_least", {"least": 1}),
    ],
)
def test_a_wrong_value_is_told_with_the_value_and_what_it_must_be(
    option: str, value: str, right: str, arguments: dict[str, object]
) -> None:
    line = error_of("replay", "x", option, value, "--json")
    assert line["message"].startswith(f"{option} = ") and "must be" in line["message"]
    why = line["finding"]["arguments"]["why"]
    assert (why["code"], why["arguments"]["value"]) == ("usage.wrong_value", repr(value))
    told = why["arguments"]["right"]
    assert (told["code"], told["arguments"]) == (right, arguments)


def test_an_option_without_its_value_names_the_help_of_its_command() -> None:
    code, _, err = flowcheck("switch", "check", "--os")
    assert code == 2 and "`flowcheck switch check --help`" in err


def test_a_missing_parameter_is_told_in_our_words() -> None:
    """The library's own sentence ("Missing option ...") differs from release to release."""
    finding = error_of("restore", "--format", "torch", "--json")["finding"]
    assert finding["sentence"] == "--out OUT is missing"
    assert set(finding["arguments"]) == {"usage", "parameter", "metavar", "command"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("up", "/none.toml"), "job file"),
        (("plan", "/none.toml"), "job file"),
        (("ports", "/none.toml"), "layout file"),
    ],
)
def test_a_file_that_is_not_there_is_told_plainly(words: tuple[str, ...], what: str) -> None:
    code, out, err = flowcheck(*words)
    assert (code, out) == (2, "") and f"flowcheck: {what} /none.toml does not exist\n" in err
    finding = error_of(*words, "--json")["finding"]
    assert finding["code"] == "setting.file_missing"
    assert finding["arguments"] == {"key": what, "file": "/none.toml"}


def test_the_remedy_is_that_of_the_page(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'run = "{tmp_path}/run"\n[[source]]\ninterface = "none0"\n'
        '[optimizer]\nname = "sgd"\nlearning_rate = 1.0\n'
    )
    line = error_of("up", job, "--json")
    (row,) = [one for one in PAGE.read_text().splitlines() if "there is no such interface" in one]
    assert str(job) in line["remedy"], "the page has no name there, and an example of a run"
    assert row.endswith(f"| {line['remedy'].replace(str(job), '… --run DIR')} |")
    assert line["cause"] and f"| {line['cause']} |" in row
    missing = error_of("replay", tmp_path / "none.pcap", "--source", "file", "--json")
    assert missing["remedy"] and missing["cause"]
    assert error_of("doctor", "--need-gib", "nan", "--json")["cause"] is None


def test_status_has_its_error_once(tmp_path: Path) -> None:
    for words in (("--run", tmp_path), ("--run", tmp_path, "--previous")):
        code, out, err = flowcheck("status", *words, "--json")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert told(err)["finding"]["code"]


def test_for_people_it_is_a_sentence_as_before(tmp_path: Path) -> None:
    sentence, cause, remedy = refused("status", "--run", tmp_path).splitlines()
    assert sentence.endswith(str(NO_CHAIN_STARTED(tmp_path, FOUND_EMPTY())))
    assert cause == f"  {NO_CHAIN_STARTED(tmp_path, FOUND_EMPTY()).cause}"
    assert remedy == f"  {NO_CHAIN_STARTED(tmp_path, FOUND_EMPTY()).remedy}"


@pytest.mark.parametrize("words", [["--json"], ["status", "--json"], ["lab", "down", "--json"]])
def test_json_is_asked_for_by_the_option(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flowcheck", *words])
    assert asks_for_json()
    monkeypatch.setattr(sys, "argv", ["flowcheck", "analyze", "--", *words])
    assert not asks_for_json(), "a file of that name"


def test_a_capture_that_is_not_there_has_a_code_of_its_own() -> None:
    finding = error_of("analyze", "/none.pcap", "--json")["finding"]
    assert finding["code"] == "captured.is_missing"
    assert finding["arguments"]["path"] == "/none.pcap"


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def named() -> None:
    raise OSError(errno.EACCES, "Permission denied", "/x/y")


def foreign() -> None:
    raise StateError(ERROR_TEXT(kind="torch", text="a\nb"))


def inside() -> None:
    raise ConfigError("x", 1, NO_CHAIN_STARTED("/run", FOUND_NOTHING()))


@pytest.mark.parametrize(
    ("fails", "code", "arguments"),
    [
        (full, "command.no_room", {}),
        (
            named,
            "command.file_error",
            {"path": "/x/y", "error": "Permission denied", "errno": "EACCES"},
        ),
        (foreign, "error.text", {"kind": "torch", "text": "a\nb"}),
        (inside, "setting.refused", None),
    ],
)
def test_errors_of_the_system_have_codes_and_one_line(
    fails: Callable[[], None],
    code: str,
    arguments: dict[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["flowcheck", "x", "--json"])
    with pytest.raises(SystemExit) as left:
        exit_on_error(fails)
    out, err = capsys.readouterr()
    assert (left.value.code, out, err.count("\n")) == (2, "", 1)
    finding = told(err)["finding"]
    assert finding["code"] == code
    if code == "command.file_error":
        assert finding["arguments"].pop("why")["code"] == "command.not_permitted"
    if arguments is not None:
        assert finding["arguments"] == arguments
    monkeypatch.setattr(sys, "argv", ["flowcheck", "x"])
    with pytest.raises(SystemExit):
        exit_on_error(fails)
    assert capsys.readouterr().err.startswith("flowcheck: ")


@pytest.mark.parametrize(
    ("words", "key", "code"),
    [
        (("audit",), "CHECKPOINT", "option.checkpoint_needed"),
        (("base",), "CHECKPOINT", "option.checkpoint_needed"),
        (("serve",), "--run", "restore.serve_what"),
        (("up", "JOB.toml"), "source", "setting.no_source"),
        (("plan", "JOB.toml"), "source", "setting.no_source"),
        (("plan", "SOURCE.toml"), "optimizer", "optimizer.not_stated"),
        (("plan", "NO_MODEL.toml"), "model.factory", "command.factory_for_memory"),
        (("analyze", "x.pcap", "--job", "NO_NAME.toml"), "optimizer.learning_rate", None),
        (("up", "NO_TARGET.toml"), "persist.target", "setting.persist_target"),
    ],
)
def test_what_is_not_set_is_told_as_that(
    words: tuple[str, ...], key: str, code: str | None, tmp_path: Path
) -> None:
    source = '[[source]]\nfile = "x"\n'
    optimizer = source + '[optimizer]\nname = "sgd"\n'
    files = {
        "JOB.toml": "",
        "SOURCE.toml": source,
        "NO_NAME.toml": optimizer,
        "NO_MODEL.toml": f"{optimizer}learning_rate = 0.1\n",
        "NO_TARGET.toml": f"{optimizer}learning_rate = 0.1\n[persist]\nevery_steps = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    named = [tmp_path / word if word in files else word for word in words]
    line = error_of(*named, "--json")
    told = line["finding"]["arguments"]
    assert (line["finding"]["code"], told["key"]) == ("setting.missing", key)
    assert "value" not in told and "None" not in line["message"]
    if code is not None:
        assert told["right"]["code"] == code


GZIP = bytes.fromhex("1f8b0800000000000003")
BEGINS = {
    "gzip": (GZIP, "text_file.is_compressed"),
    "utf16": ("[x]\nNCCL".encode("utf-16"), "text_file.in_utf_16"),
    "binary": (b"\x0a\x0d\x0d\x0a\x1c\0\0\0", "text_file.is_binary"),
}


@pytest.mark.parametrize("kind", BEGINS)
@pytest.mark.parametrize(
    "words",
    [
        ("up", "FILE"),
        ("plan", "FILE.toml"),
        ("ports", "FILE"),
        ("analyze", "CAPTURE", "--nccl-log", "FILE"),
        ("ports", "LAYOUT", "--nccl-log", "FILE"),
    ],
)
def test_a_file_that_is_no_text_is_told_as_what_it_is(
    words: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    begin, code = BEGINS[kind]
    for name in ("FILE", "FILE.toml"):
        (tmp_path / name).write_bytes(begin)
    data = Path(__file__).parents[1] / "data"
    (tmp_path / "LAYOUT").write_bytes((data / "ports" / "sixteen-nodes.toml").read_bytes())
    (tmp_path / "CAPTURE").write_bytes((data / "two-ranks-ll.pcapng").read_bytes())
    there = [word if "-" in word or word.islower() else tmp_path / word for word in words]
    line = error_of(*there, "--json")
    right = line["finding"]["arguments"]["right"]
    assert right["code"] == code and line["remedy"]
    if kind == "gzip":
        assert right["arguments"]["program"] == "gzip"
        assert str(tmp_path / "FILE") in right["arguments"]["command"]


def test_the_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_bytes(b'run = "x"\n# caf\xe9\n')
    right = error_of("up", job, "--json")["finding"]["arguments"]["right"]
    assert (right["code"], right["arguments"]) == ("text_file.not_utf_8", {"line": 2})
    job.write_bytes(b"\xef\xbb\xbf" + b'run = "x"\n')
    told = error_of("up", job, "--json")["finding"]["arguments"]
    assert told["key"] == "source", "a byte order mark of UTF-8 is passed over"


@pytest.mark.parametrize("how", [("--format", "torch"), ("--template", "/none.pt")])
def test_a_checkpoint_that_is_not_there_is_told_as_that(how: tuple[str, str]) -> None:
    words = ("restore", *how, "--checkpoint", "/none", "--out", "/tmp/x.pt", "--json")
    finding = error_of(*words)["finding"]
    assert (finding["code"], finding["arguments"]) == (
        "manifest.no_checkpoint",
        {"output": "/none"},
    )
