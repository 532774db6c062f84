"""Asks the chains of a fleet themselves for their steps: those whose keeper does not answer, and
those from which a step is to be fetched, so that it stays while others are."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import TypeVar

import msgspec

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.fleet_running import (
    SERVER_SILENT,
    STATE_CHANGED,
    STATE_IS_ANOTHER,
)
from flowcheck.findings.finding import Finding
from flowcheck.fleet.common_step import Holder, Life
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.step_numbers import Step
from flowcheck.vault.download.download_source import HttpSource, TransientError
from flowcheck.vault.http_support.tls_context import client_tls_context
from flowcheck.vault.serve.read_leases import LEASE_S
from flowcheck.vault.serve.step_server import read_token

LIMIT_S = 5.0
"""Seconds for all chains together, which are asked at once: as for keepers (keeper_client.py)."""
LEASE_LIMIT_S = 600.0
"""Seconds in which all have written the step to files: a server's own limit."""
RENEW_S = LEASE_S / 4
"""Seconds between two requests that keep a step. A choice: three may be lost."""
Told = TypeVar("Told")


def served_holders(
    state: FleetState, chains: Sequence[FleetChain], limit_s: float = LIMIT_S
) -> list[Holder]:
    """What the servers of these chains tell; those that do not answer in time are left out."""

    def ask(chain: FleetChain) -> Holder:
        with _source(state, chain, limit_s) as source:
            told = source.exact()
        life = None if told.life is None else msgspec.convert(told.life, Life)
        return Holder(name=chain.name, of=chain.of, node=chain.node, life=life, steps=told.steps)

    found = _all_at_once({own.name: _asking(ask, own) for own in chains}, limit_s)
    return [found[own.name] for own in chains if own.name in found]


@contextmanager
def kept_at_servers(
    state: FleetState,
    wanted: Mapping[str, Sequence[tuple[FleetChain, str]]],
    step: Step,
    limit_s: float = LEASE_LIMIT_S,
) -> Iterator[dict[str, list[FleetChain]]]:
    """Within the block the step stays at one server of each shard: {shard: that one, and those that
    were not asked}.

    wanted: {shard: (chain, digest of the state)}, in the order in which they are asked, at once for
    all shards; again and again then, for a server keeps a step for LEASE_S. Raises StateError where
    nobody gives a shard.
    """

    def hold(chain: FleetChain, digest: str) -> Finding | None:
        """Why it is not given; None: it is, and stays for LEASE_S."""
        try:
            with _source(state, chain, limit_s) as source:
                listing = source.find(step).listing
        except (FlowCheckError, TransientError) as error:
            return error.finding
        return None if (listing.step, listing.digest) == (step, digest) else STATE_IS_ANOTHER()

    left = {shard: list(pairs) for shard, pairs in wanted.items()}
    held: dict[str, tuple[FleetChain, str]] = {}
    while asked := {s: pairs[0] for s, pairs in left.items() if s not in held}:
        found = _all_at_once({s: _asking(hold, *pair) for s, pair in asked.items()}, limit_s)
        for shard, pair in asked.items():
            why = found.get(shard, SERVER_SILENT(limit_s))
            left[shard] = left[shard][1:]
            if why is None:
                held[shard] = pair
            elif not left[shard]:
                raise StateError(STATE_CHANGED(chain=pair[0].name, step=step, why=why))
    ended = Event()

    def renew() -> None:
        while not ended.wait(RENEW_S):
            _all_at_once({s: _asking(hold, *pair) for s, pair in held.items()}, RENEW_S)

    threading.Thread(target=renew, daemon=True).start()
    try:
        yield {shard: [own for own, _ in (held[shard], *rest)] for shard, rest in left.items()}
    finally:
        ended.set()


def _asking(does: Callable[..., Told], *words: object) -> Callable[[], Told]:
    return lambda: does(*words)


@contextmanager
def _source(state: FleetState, chain: FleetChain, limit_s: float) -> Iterator[HttpSource]:
    token = None if state.token_file is None else read_token(state.token_file).decode()
    https = chain.served.startswith("https:")
    tls = client_tls_context(chain.served, state.ca if https else None)
    source = HttpSource(chain.served, token, min(limit_s, 30.0), tls)
    try:
        yield source
    finally:
        source.close()


def _all_at_once(does: Mapping[str, Callable[[], Told]], limit_s: float) -> dict[str, Told]:
    """{name: what it gave}, of those that gave something within the limit."""
    answers: queue.Queue[tuple[str, list[Told]]] = queue.Queue()

    def one(name: str, asks: Callable[[], Told]) -> None:
        found: list[Told] = []
        with suppress(FlowCheckError, TransientError, OSError, msgspec.MsgspecError):
            found.append(asks())
        answers.put((name, found))

    for name, asks in does.items():
        threading.Thread(target=one, args=(name, asks), daemon=True).start()
    until_s, given = time.monotonic() + limit_s, dict[str, Told]()
    with suppress(queue.Empty):
        for _ in does:
            name, found = answers.get(timeout=max(0.0, until_s - time.monotonic()))
            if found:
                given[name] = found[0]
    return given
