"""A made-up job's frames, paced, with some left out on purpose; and a real Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from support.free import free_port

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, SyntheticRun, write_pcap

REPOSITORY = Path(__file__).resolve().parents[2]
MONITORING = REPOSITORY / "scripts" / "monitoring"
JOB = SyntheticJob(ranks=4, channels=2, steps=14)


def paced(path: Path, *, from_step: int, lost_step: int, frame_every_s: float) -> int:
    """A capture at rank 0 whose frames come at once up to `from_step`, then at an even pace, and
    lack half a step of `lost_step`'s; the place behind the frames that were left out."""
    seen = SyntheticRun(JOB).generate().frames_at_port(0, "both")
    per = _frames_of_a_step()  # the later ones take as many each
    begin = len(seen) - per * (JOB.steps - from_step)
    first = len(seen) - per * (JOB.steps - lost_step) - per // 2
    frames = seen[:first] + seen[first + per // 2 :]
    times = (10**18 + int(max(0, n - begin) * frame_every_s * 1e9) for n in range(len(frames)))
    write_pcap(path, [replace(f, time_ns=at) for f, at in zip(frames, times, strict=True)])
    return first


def _frames_of_a_step() -> int:
    longer = SyntheticRun(replace(JOB, steps=JOB.steps + 1)).generate().frames_at_port(0, "both")
    return len(longer) - len(SyntheticRun(JOB).generate().frames_at_port(0, "both"))


class Prometheus:
    """One that runs, by its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """Data of a successful answer."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=60
        ) as r:
            told = json.load(r)
        assert told["status"] == "success", told
        return told["data"]

    def samples(self, selector: str) -> dict[float, float]:
        """{time of the scrape: value} of the one series."""
        found = self.get("query", query=f"{selector}[10m]")["result"]
        assert len(found) <= 1, found
        return {float(at): float(value) for one in found for at, value in one["values"]}

    @property
    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, target: str, word: Path, authority: Path) -> Iterator[Prometheus]:
    """With the configuration and the alerts of scripts/monitoring, but for whom it scrapes: over
    https, by the lines that are comments there. word: a file."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus: apt-get install prometheus")
    shutil.copy(MONITORING / "alerts.yml", folder / "alerts.yml")
    stated = (MONITORING / "prometheus.yml").read_text()
    files = {"flowcheck.token": word, "flowcheck-ca.pem": authority}
    for name, file in files.items():
        stated = stated.replace(f"/etc/prometheus/{name}", str(file))
    for key in ("authorization", "scheme", "tls_config"):
        assert f"# {key}: " in stated
        stated = stated.replace(f"# {key}: ", f"{key}: ")
    (folder / "prometheus.yml").write_text(stated.replace("127.0.0.1:9464", target))
    port = free_port()
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    process = subprocess.Popen([program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.communicate()


def expressions(dashboard: Any) -> Sequence[str]:
    """Of all panels, with what Grafana puts in for its variables."""
    found = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    for name, value in (("$__rate_interval", "1m"), ("$instance", ".*"), ("$training_job", ".*")):
        found = [one.replace(name, value) for one in found]
    assert not any("$" in one for one in found), found
    return found
