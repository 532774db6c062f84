"""The watcher over https, by certificates that openssl makes, as curl meets it; what is none is
refused before anything is captured or shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.authority import Authority
from support.chain import Command
from support.free import free_port
from support.refused_as import Wanted, like, refused_as

from flowcheck.config import encode_config
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_downloads import CERTIFICATE_AND_KEY, FILE_UNREADABLE
from flowcheck.findings.catalog.general_errors import SETTING_REFUSED
from flowcheck.findings.catalog.monitoring_requests import TOKEN_NEEDED
from flowcheck.findings.catalog.refused_settings import NEEDS_OTHER
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.watch.watch_command import WatchOptions, _settings
from flowcheck.stages.run_directory.run_dir import RunDir

WORD = "a-word-of-sixteen-and-more"
JOB = '[[source]]\ninterface = "eth1"\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("curl") is None, reason="needs openssl, curl"
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path, "authority")
    made.sign(tmp_path / "own.pem", tmp_path / "own.key")
    (tmp_path / "word").write_text(WORD)
    return made


def curl(*words: str | Path) -> tuple[int, str]:
    """(exit code, body), of the real client."""
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_curl_gets_every_path_over_https_alone(authority: Authority, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    own = ("--tls-certificate", tmp_path / "own.pem", "--tls-key", tmp_path / "own.key")
    words = ("watch", "--run", tmp_path / "run", "--listen", address, *own)
    with Command(*words, "--token-file", tmp_path / "word", "--json") as watch:
        assert watch.process.stdout is not None
        url = json.loads(watch.process.stdout.readline())["url"]
        assert url == f"https://{address}"
        word = ("-H", f"Authorization: Bearer {WORD}")
        trusted = ("--cacert", authority.file)
        for path, told in (("/", "<!doctype html>"), ("/metrics", "flowcheck_health"),
                           ("/healthz", "stale"), ("/state.json", '"health"')):  # fmt: skip
            code, body = curl(*trusted, *word, url + path)
            assert code == 0 and told in body.lower()
        refused = json.loads(curl(*trusted, url)[1])
        assert refused["error"] == "send this server's token"
        assert refused["finding"]["code"] == TOKEN_NEEDED.code
        assert curl(*word, url)[0] == 60, "nobody vouches for it"
        code, body = curl(*word, f"http://{address}/healthz")
        assert code != 0 and not body


@pytest.mark.parametrize(
    ("certificate", "key", "wanted"),
    [
        (
            "none.pem",
            "own.key",
            like(
                FILE_UNREADABLE,
                key="watch.tls_certificate",
                value=re.compile(r"none\.pem"),
            ),
        ),
        (
            "own.pem",
            "none.key",
            like(
                FILE_UNREADABLE,
                key="watch.tls_key",
                value=re.compile(r"none\.key"),
            ),
        ),
        (
            "own.pem",
            "not.key",
            like(
                SETTING_REFUSED,
                key="watch.tls_certificate",
                right=like(CERTIFICATE_AND_KEY, key=re.compile(r"not\.key$")),
            ),
        ),
        (
            "word",
            "own.key",
            like(CERTIFICATE_AND_KEY, key="watch.tls_certificate"),
        ),
        (
            None,
            "own.key",
            like(NEEDS_OTHER, key="watch.tls_key", other="watch.tls_certificate"),
        ),
    ],
)
def test_what_is_no_certificate_is_refused_before_anything_is_captured(
    certificate: str | None, key: str, wanted: Wanted, authority: Authority, tmp_path: Path
) -> None:
    Authority(tmp_path, "other").sign(tmp_path / "not.pem", tmp_path / "not.key")
    stated = f'[watch]\ntls_key = "{tmp_path}/{key}"\n'
    stated += f'tls_certificate = "{tmp_path}/{certificate}"\n' if certificate else ""
    (tmp_path / "job.toml").write_text(JOB + stated)
    with refused_as(wanted, kind=ConfigError):
        load_checked_job(tmp_path / "job.toml")


def test_the_steps_servers_certificate_is_looked_at_as_early(
    authority: Authority, tmp_path: Path
) -> None:
    own = f'tls_certificate = "{tmp_path}/own.pem"\ntls_key = "{tmp_path}/own.key"\n'
    (tmp_path / "job.toml").write_text(f"{JOB}[serve]\n{own}[watch]\n{own}")
    load_checked_job(tmp_path / "job.toml")
    (tmp_path / "own.key").unlink()
    (tmp_path / "job.toml").write_text(f"{JOB}[serve]\n{own}")
    with refused_as(FILE_UNREADABLE, kind=ConfigError, key="serve.tls_key"):
        load_checked_job(tmp_path / "job.toml")


def test_a_certificate_of_the_command_goes_without_the_job_files_key(
    authority: Authority, tmp_path: Path
) -> None:
    own = f'tls_certificate = "{tmp_path}/own.pem"\ntls_key = "{tmp_path}/own.key"\n'
    (tmp_path / "job.toml").write_text(f"{JOB}[watch]\n{own}")
    (tmp_path / "run").mkdir()
    RunDir(tmp_path / "run").config.write_bytes(
        encode_config(load_checked_job(tmp_path / "job.toml"))
    )
    for stated, told in (
        (WatchOptions(), ("own.pem", "own.key")),
        (WatchOptions(tls_certificate="both.pem"), ("both.pem", "None")),
        (WatchOptions(tls_certificate="a.pem", tls_key="a.key"), ("a.pem", "a.key")),
    ):
        found = _settings(tmp_path / "run", stated)
        assert (Path(str(found.tls_certificate)).name, Path(str(found.tls_key)).name) == told
    with refused_as(NEEDS_OTHER, kind=ConfigError, other="watch.tls_certificate"):
        _settings(tmp_path, WatchOptions(tls_key="own.key"))
