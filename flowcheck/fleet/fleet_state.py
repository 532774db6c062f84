"""The state of a fleet: which chains run where, and whether they are to run. Each machine has a
copy of it on its disk (ops/fleet/node_folder.py)."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from flowcheck.fleet.fleet_chains import FleetChain


class StateRank(NamedTuple):
    """Which of two states takes the place of the other: a total order, so that machines which hear
    of both in any order agree. Two who start the fleet at the same instant may take one number:
    the digest decides then, for no clock does; a stop wins against a start."""

    generation: int
    stopped: bool
    stated: str
    """`FleetState.stated_digest`."""


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
        chains = tuple(msgspec.structs.replace(own, job=job_digest(own.job)) for own in self.chains)
        plain = msgspec.structs.replace(self, generation=0, wanted=True, chains=chains)
        return hashlib.sha256(encode_fleet(plain)).hexdigest()

    @property
    def rank(self) -> StateRank:
        return StateRank(self.generation, not self.wanted, self.stated_digest)

    def for_node(self, node: str) -> FleetState:
        """With the job files of one machine's chains, which may have secrets, and of all others
        what they are compared by."""
        chains = tuple(
            own if own.node == node else msgspec.structs.replace(own, job=job_digest(own.job))
            for own in self.chains
        )
        return msgspec.structs.replace(self, chains=chains)


def encode_fleet(state: FleetState) -> bytes:
    return msgspec.json.encode(state, order="sorted")


def decode_fleet(text: bytes) -> FleetState:
    """Raises msgspec.MsgspecError, UnicodeDecodeError or RecursionError where it is none."""
    return msgspec.json.decode(text, type=FleetState)


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_EPOCH = re.compile(r"^epoch = \d+$", re.MULTILINE)


def job_digest(job: str) -> str:
    """Of a chain's job file, without the epoch that its `[copies]` have in one generation; of such
    a digest, itself."""
    if _DIGEST.fullmatch(job):
        return job
    return f"sha256:{hashlib.sha256(_EPOCH.sub('', job).encode()).hexdigest()}"
