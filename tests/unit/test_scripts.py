"""What README and scripts promise: every command exists, every example runs or parses."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpy as np

from bench import chaining, extracting, load, measure, parsing

from flowcheck.config import OptimizerConfig, job_from
from flowcheck.lab import __main__ as lab
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.param_layout import Layout

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = [REPOSITORY / "flowcheck" / room for room in ("replica", "vault", "wire", "stages", "lab")]
MORE = (
    p.parent
    for top in ("flowcheck", "scripts", "switch_configs")
    for p in (REPOSITORY / top).rglob("README.md")
)
HOMES = [REPOSITORY, *ROOMS, *sorted(set(MORE) - set(ROOMS))]
"""Folders of pages; those whose settings are read in their order first."""
PAGES = [(home / "README.md").read_text() for home in HOMES]
FILES = sorted(
    p
    for p in (REPOSITORY / "scripts").rglob("*")
    if p.is_file() and "__pycache__" not in p.parts  # tests import some of them
)
SCRIPTS = [p for p in FILES if p.suffix == ".sh" or p.read_text().startswith("#!")]
TINY = measure.Scale(quick=True, repeats=1, bytes=2 << 20)


def blocks(kind: str) -> list[str]:
    """Fenced blocks of one kind, of the README and of every page beside the code."""
    fence = re.compile(rf"^```{kind}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for page in PAGES for block in fence.findall(page)]


def commands() -> list[str]:
    """What README tells its reader to type."""
    return re.findall(r"^\$ (.*)$", "\n".join(blocks("console")), re.MULTILINE)


def printed_by(module: str, *words: str, columns: int) -> str:
    """`python -m module words`, run here, where torch is already."""
    told = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(told),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # of modules that are here already
        patch.setattr(sys, "argv", [module, *words])
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("NO_COLOR", "1")
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            assert not ended.code, told.getvalue()
    return told.getvalue()


@cache
def help_of(module: str, *words: str) -> str:
    """Of a command, in wide lines."""
    return printed_by(module, *words, "--help", columns=200)


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_exists_with_the_options_it_uses(command: str) -> None:
    words = shlex.split(command)
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if words[0].startswith("scripts/"):
        assert os.access(REPOSITORY / words[0], os.X_OK)
        module = {"scripts/bench": "bench", "scripts/faults": "support.faults"}.get(words[0])
        told = help_of(module) if module is not None else ""
    elif words[0] == "flowcheck":
        verb = words[1:3] if words[1] in ("switch", "fleet") else words[1:2]
        told = help_of("flowcheck", *verb)
    elif words[:2] == ["python", "-m"]:
        told = help_of(words[2])
    else:
        assert words == [".", ".venv/bin/activate"]
        told = ""
    assert all(option in told for option in options), told


def shown() -> Iterator[tuple[str, list[str]]]:
    """What README tells its reader to type about its capture, and the lines it shows below."""
    for block in blocks("console"):
        for typed in block.split("$ ")[1:]:
            command, *lines = typed.splitlines()
            if "job.pcap" in command:
                yield command, lines


def test_the_readme_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`...` above them stands for any lines: what is said of the machine is not every machine's.
    Nor is a digest behind Adam: square roots differ by the CPU's maker (rules/onepass.py)."""
    monkeypatch.chdir(tmp_path)
    seen = []
    for command, lines in shown():
        program, *words = shlex.split(command)
        module, *words = ["flowcheck", *words] if program == "flowcheck" else words[1:]
        told = printed_by(module, *words, columns=100)
        printed = [line.rstrip() for line in told.splitlines()]
        wanted = lines
        if lines[0] == "...":
            wanted = lines[1:]
            printed = printed[-len(wanted) :]
        assert [_without_digest(line) for line in printed] == list(map(_without_digest, wanted)), (
            command
        )
        seen.append(words[0])
    assert seen == ["job.pcap", "analyze", "replay"]


def _without_digest(line: str) -> str:
    return re.sub(r"(?<=state digest )[0-9a-f]{32}$", "", line)


def test_the_readme_names_every_verb_there_is() -> None:
    verbs = set(re.findall(r"^[│|\s]*([\w-]+)\s{2,}", help_of("flowcheck"), re.M))
    assert {"analyze", "replay", "up", "status", "down", "doctor"} <= verbs
    assert {words.split()[1] for words in commands() if words.startswith("flowcheck ")} <= verbs


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for home, page in zip(HOMES, PAGES, strict=True):
        for target in re.findall(r"\]\((?!https?:)([^)]*)\)", page):
            name, _, heading = target.partition("#")
            there = (home / name if name else home / "README.md").resolve()
            assert there.exists(), target
            slugs = {
                re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
                for line in (there.read_text().splitlines() if heading else ())
                if line.startswith("#")
            }
            assert not heading or heading in slugs, target


def test_the_readme_s_job_files_are_such() -> None:
    found = (tomllib.loads(text) for text in blocks("toml"))
    first, rule, each, watched, kept, striped, zero, hybrid, several, sharded, *_ = found
    job = job_from(first)
    assert job.optimizer is not None and job.source[0].pci == "0000:3b:00.0"
    source = {"source": first["source"]}
    ruled = job_from(source | rule).optimizer
    assert ruled is not None and ruled.scaler is not None and ruled.average is not None
    layout = Layout.of_shapes([(4, 3), (3,)], names=["fc.weight", "fc.bias"])
    built = build_optimizer(ruled, layout, [torch.zeros(4, 3), torch.zeros(3)])
    assert [group["weight_decay"] for group in built.optimizers[0].param_groups] == [0.0, 0.1]
    two = job_from(source | each).optimizer
    assert two is not None
    optimizers = build_optimizer(two, layout, [torch.zeros(4, 3), torch.zeros(3)]).optimizers
    assert [type(one).__name__ for one in optimizers] == ["Muon", "AdamW"]
    assert job_from(source | rule | watched).audit is not None
    job = job_from(source | rule | kept)
    assert job.persist is not None and job.serve is not None
    persist = job_from(source | rule | striped).persist
    assert persist is not None and (len(persist.targets), persist.parity_blocks) == (6, 2)
    job = job_from(source | hybrid)
    assert job.sharded is not None and (job.sharded.style, job.sharded.ranks) == ("hsdp", 4)
    job = job_from(source | several)
    assert [own.name for own in job.job] == ["dense", "other"] and job.nccl_log == "rank0.log"
    job = job_from(source | sharded)
    assert job.sharded is not None and job.sharded.style == "zero"
    assert job_from(source | zero).whole_zero and not job.whole_zero


def test_the_readme_s_way_to_load_a_checkpoint_works(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout.of_shapes([(3, 4), (4,)])
    config = OptimizerConfig(name="adamw", learning_rate=1e-3)
    weights = np.arange(layout.elements, dtype=np.float32)
    replica = Replica.create(shm / "replica", layout, config, weights)
    for step in range(1, 5):
        replica.apply(step, np.ones(layout.elements, np.float32))
    checkpoint_save.save(replica, tmp_path / "checkpoints")
    final = replica.parameters().copy()
    replica.close()
    (text,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(text, "README.md", "exec"), names)
    parameters = names["parameters"]
    assert isinstance(parameters, dict)
    assert np.array_equal(np.concatenate([p.ravel() for p in parameters.values()]), final)
    state = names["optimizer_state"]
    assert isinstance(state, dict)
    assert state["state"][0]["step"] == 4


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_short_and_stop_at_the_first_error(script: Path) -> None:
    text = script.read_text()
    assert "set -eu" in text or "/lib/setup.sh" in text
    assert len(text.splitlines()) < (60 if script.name == "setup.sh" else 40)


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("--quick", 2)])
def test_the_demo_takes_no_arguments_and_says_so_before_it_does_anything(
    word: str, code: int
) -> None:
    done = subprocess.run(
        [REPOSITORY / "scripts" / "demo", word],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout.startswith("usage: scripts/demo (no arguments") and "==>" not in done.stdout


def test_shellcheck_has_nothing_to_say() -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    scripts = [s for s in SCRIPTS if s.read_text().startswith("#!") and "sh" in s.read_text()[:40]]
    subprocess.run(
        [program, "-x", "-e", "SC1091", *scripts], check=True, cwd=REPOSITORY, timeout=60
    )


def test_the_lab_writes_a_capture_and_what_really_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, truth = tmp_path / "job.pcap", tmp_path / "truth"
    words = ["lab", str(out), "--steps", "2", "--shapes", "4x3,3", "--truth", str(truth)]
    monkeypatch.setattr(sys, "argv", words)
    lab.main()
    assert out.stat().st_size > 1000
    names = [line.split(maxsplit=1)[1] for line in truth.read_text().splitlines()]
    assert names == ["weights", "gradient 1", "gradient 2"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="the bench's loops need a C compiler")
def test_every_stage_s_bench_moves_every_byte() -> None:
    """The stages assert their own counts; no time is judged here."""
    made = [*parsing.figures(TINY, []), *extracting.figures(TINY, [])]
    assert {figure.stage for figure in made} >= {"parse, 1102 B", "extract LL, 4174 B"}
    job = load.Load(1024, 8, 1024)
    with measure.memory(0) as folder:
        load.write_pcap(folder / "load.pcap", job)
        figure = chaining._one_core(TINY, folder, job, job.whole_frames, None)
    assert figure.value > 0 and figure.target is None
