"""Asks the keepers of a fleet, each within a limit, however they are: gone, frozen, or of another
release."""

from __future__ import annotations

import http.client
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from flowcheck import __version__
from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.findings.catalog.fleet_running import (
    KEEPER_ANSWER,
    KEEPER_GONE,
    KEEPER_REFUSED,
    KEEPER_RELEASE,
    KEEPER_SILENT,
)
from flowcheck.findings.finding import Finding
from flowcheck.fleet.fleet_state import FleetState, decode_fleet
from flowcheck.fleet.node_report import NodeReport
from flowcheck.untrusted_text import printable
from flowcheck.vault.http_support.tls_context import client_tls_context
from flowcheck.vault.serve.guarded_request_handler import JSON
from flowcheck.vault.serve.step_server import read_token

LIMIT_S = 5.0
"""Seconds for all keepers together, which are asked at once. A choice: a longer limit shows the
others later, a shorter one takes a busy machine for a dead one."""
REPORT_BYTES = 16 << 20
"""Most bytes of an answer. A choice: a chain takes some 2 KiB."""
SHOWN_MAX = 300
"""Characters of a refusal that are shown."""

Answer = NodeReport | Finding


class _Release(msgspec.Struct):
    """What an answer of any release has."""

    release: str


class KeeperClient:
    """Asks with the fleet's token."""

    def __init__(self, token_file: str | None, ca: str | None) -> None:
        """Raises ConfigError if the token cannot be read."""
        self._token = None if token_file is None else read_token(token_file).decode()
        self._ca = ca

    def reports(self, keepers: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, Answer]:
        """{node: its report, or why there is none}"""
        return self._all(keepers, None, limit_s)

    def stop(
        self, keepers: Mapping[str, str], generation: int, limit_s: float = LIMIT_S
    ) -> dict[str, Answer]:
        """Asks each to end its chains, as of this generation; its report from then."""
        body = msgspec.json.encode({"generation": generation})
        return self._all(keepers, body, limit_s)

    def newest_state(
        self, state: FleetState, answers: Mapping[str, Answer], limit_s: float = LIMIT_S
    ) -> FleetState:
        """The fleet as the machine with the highest state has it, without job files: who asks needs
        one keeper, and a fleet file that may have changed since. `state`, where that is it, or
        nobody gives another one.

        answers: what the machines of `state` report.
        """
        told = [one for one in answers.values() if isinstance(one, NodeReport)]
        own = [one for one in told if one.fleet == state.name]
        top = max(own, key=lambda one: one.rank, default=None)
        if top is None or top.stated == state.stated_digest:
            return state
        found = self._get(top.node, state.keepers[top.node], "/fleet", None, limit_s)
        with suppress(*DECODE_ERRORS):
            if isinstance(found, bytes):
                known = decode_fleet(found)
                return known if known.name == state.name else state
        return state

    def _all(
        self, keepers: Mapping[str, str], body: bytes | None, limit_s: float
    ) -> dict[str, Answer]:
        """A thread for each: a name that is looked up, too, may take for ever."""
        answers: queue.Queue[tuple[str, Answer]] = queue.Queue()

        def ask(node: str, url: str) -> None:
            answers.put((node, self._one(node, url, body, limit_s)))

        for node, url in keepers.items():
            threading.Thread(target=ask, args=(node, url), daemon=True).start()
        until_s, found = time.monotonic() + limit_s, dict[str, Answer]()
        with suppress(queue.Empty):
            while len(found) < len(keepers):
                node, answer = answers.get(timeout=max(0.0, until_s - time.monotonic()))
                found[node] = answer
        return {
            node: found.get(node) or KEEPER_SILENT(node=node, seconds=limit_s) for node in keepers
        }

    def _one(self, node: str, url: str, body: bytes | None, limit_s: float) -> Answer:
        text = self._get(node, url, "/node" if body is None else "/stop", body, limit_s)
        if isinstance(text, Finding):
            return text
        try:
            report = msgspec.json.decode(text, type=NodeReport)
        except DECODE_ERRORS as error:
            with suppress(*DECODE_ERRORS):
                other = msgspec.json.decode(text, type=_Release).release
                if other != __version__:
                    shown = printable(other)[:SHOWN_MAX]
                    return KEEPER_RELEASE(node=node, release=shown, own=__version__)
            return KEEPER_ANSWER(node=node, url=url, error=printable(str(error))[:SHOWN_MAX])
        if report.node != node:
            return KEEPER_ANSWER(node=node, url=url, error=printable(report.node)[:SHOWN_MAX])
        return report

    def _get(
        self, node: str, url: str, path: str, body: bytes | None, limit_s: float
    ) -> bytes | Finding:
        """The text of an answer; body: None: of GET, else of POST."""
        place = urlsplit(url)
        host, port = str(place.hostname), place.port
        connection: http.client.HTTPConnection
        try:
            tls = client_tls_context(url, self._ca if place.scheme == "https" else None)
            if tls is None:
                connection = http.client.HTTPConnection(host, port, timeout=limit_s)
            else:
                connection = http.client.HTTPSConnection(host, port, timeout=limit_s, context=tls)
            told = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
            if body is None:
                connection.request("GET", path, headers=told)
            else:
                connection.request("POST", path, body, told | {"Content-Type": JSON})
            answer = connection.getresponse()
            text = answer.read(REPORT_BYTES + 1)[:REPORT_BYTES]
            connection.close()
        except FlowCheckError as error:
            return error.finding
        except (OSError, http.client.HTTPException) as error:
            return KEEPER_GONE(node=node, url=url, error=printable(str(error))[:SHOWN_MAX])
        if answer.status != http.client.OK:
            why = printable(text.decode(errors="replace"))[:SHOWN_MAX]
            return KEEPER_REFUSED(node=node, url=url, status=answer.status, error=why)
        return text
