"""A refusal of our server is a finding, also to who downloads; another server's is text."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.fetching import served

from flowcheck.errors import StateError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.findings.catalog.checkpoint_damage import (
    GROUPS_OF_NO_OPTIMIZER,
    NO_MANIFEST,
    NO_PARAMETER,
    NUMBER_IN_NO_GROUP,
    NUMBER_TWICE,
    PLAIN_UNLIKE,
    SCALER_WITHOUT_SCALE,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.non_tensor_state import decode_non_tensor_state
from flowcheck.vault.download.download_source import SHOWN_MAX, HttpSource


def refusal(source: HttpSource, step: int) -> Finding:
    with pytest.raises(StateError) as refused:
        source.find(step)
    return refused.value.finding


def test_a_step_that_is_not_there_is_a_finding_of_the_server_and_of_the_download(
    kept: Path,
) -> None:
    with served(kept) as url:
        with pytest.raises(urllib.error.HTTPError) as answered:
            urllib.request.urlopen(f"{url}/steps/77", timeout=60)
        told = json.loads(answered.value.read())
        source = HttpSource(url, None, 10.0)
        found = refusal(source, 77)
        source.close()
    assert told["finding"]["code"] == downloads.NO_SUCH_STEP.code
    assert told["finding"]["arguments"]["step"] == "77"
    assert told["error"] == told["finding"]["sentence"]
    assert found.code == downloads.REFUSED.code
    assert found.arguments["said"].code == told["finding"]["code"]  # type: ignore[union-attr]
    assert told["error"] in str(found)


ANSWERS = {
    "text alone": ({"error": "it is closed"}, "it is closed"),
    "a finding of a later release": (
        {"error": "new words", "finding": {"code": "later.code", "sentence": "new words"}},
        "new words",
    ),
    "a finding that is none": ({"error": "words", "finding": {"code": 7}}, "words"),
    "text that is none": ({"error": 7, "finding": []}, "HTTP 404"),
    "a finding without end": (
        {
            "error": "words",
            "finding": {"code": downloads.NO_STEPS.code, "arguments": {"step": "x" * 9999}},
        },
        "words",
    ),
}


@pytest.fixture
def other() -> Iterator[HTTPServer]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(self.server.answer).encode()  # type: ignore[attr-defined]
            self.send_response(404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_another_server_says_is_shown_as_text(other: HTTPServer, answer: str) -> None:
    other.answer, said = ANSWERS[answer]  # type: ignore[attr-defined]
    source = HttpSource(f"http://127.0.0.1:{other.server_port}", None, 10.0)
    found = refusal(source, 1)
    source.close()
    assert found.code == downloads.REFUSED.code
    assert found.arguments["said"] == said
    assert len(str(found)) < SHOWN_MAX + 100


WRONG = [
    ({"numbers": {"x": 0}}, NO_PARAMETER("'x'")),
    ({"numbers": {"a": 0, "b": 0}}, NUMBER_TWICE()),
    ({"numbers": {"a": 5}, "param_groups": [{"params": [0]}]}, NUMBER_IN_NO_GROUP()),
    (
        {"param_groups": [{"params": [0]}], "several": {"groups": [3], "keys": ["k"]}},
        GROUPS_OF_NO_OPTIMIZER(),
    ),
    ({"scaler": {"growth": 1}}, SCALER_WITHOUT_SCALE()),
]


@pytest.mark.parametrize(("plain", "why"), WRONG, ids=lambda one: getattr(one, "code", ""))
def test_what_of_a_manifest_does_not_fit_is_a_finding(
    plain: dict[str, object], why: Finding
) -> None:
    with pytest.raises(StateError) as refused:
        decode_non_tensor_state(plain, ["a", "b"], "step-1")
    assert refused.value.finding == NO_MANIFEST(where="step-1", error=PLAIN_UNLIKE(why))
