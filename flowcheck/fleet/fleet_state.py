"""The state of a fleet: which chains run where, and whether they are to run. Each machine has a
copy of it on its disk (ops/fleet/node_folder.py)."""

from __future__ import annotations

import hashlib
import re

import msgspec

from flowcheck.fleet.fleet_chains import FleetChain


class FleetState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `fleet up` gives to each machine. A higher `generation` takes the place of a lower one,
    and nothing else does: each machine has seen some of them, in any order."""

    name: str
    generation: int
    """From 1; `fleet up` and `fleet down` each take one more than the highest that any machine that
    answers has seen. It is also the `[copies] epoch` of the chains."""
    wanted: bool
    """Whether the chains are to run."""
    folder: str
    """Working directory of the chains, from which their relative paths begin."""
    state: str
    """Folder on each machine (FleetConfig.state)."""
    keepers: dict[str, str]
    """{node: URL of its keeper}"""
    chains: tuple[FleetChain, ...]
    token_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    ca: str | None = None

    def on(self, node: str) -> tuple[FleetChain, ...]:
        """The chains of one machine."""
        return tuple(own for own in self.chains if own.node == node)

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the chains that capture."""
        return tuple(own.name for own in self.chains if own.of is None)

    @property
    def stated_digest(self) -> str:
        """Of what was stated: the same for every generation of an unchanged fleet file."""
        chains = tuple(
            msgspec.structs.replace(own, job=without_epoch(own.job)) for own in self.chains
        )
        plain = msgspec.structs.replace(self, generation=0, wanted=True, chains=chains)
        return hashlib.sha256(encode_fleet(plain)).hexdigest()


def encode_fleet(state: FleetState) -> bytes:
    return msgspec.json.encode(state, order="sorted")


def decode_fleet(text: bytes) -> FleetState:
    """Raises msgspec.MsgspecError, UnicodeDecodeError or RecursionError where it is none."""
    return msgspec.json.decode(text, type=FleetState)


_EPOCH = re.compile(r"^epoch = \d+$", re.MULTILINE)


def without_epoch(job: str) -> str:
    """A chain's job file without the epoch that its `[copies]` have in one generation."""
    return _EPOCH.sub("", job)
