"""The hook in the lab's trainers: where it listens, its token, and the chain's `[hook]`.

The hook is asked over the management link, past the switch, so that no mirror ever sees it.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from flowcheck.hook.install import ADDRESS, TOKEN_FILE
from flowcheck.lab.cluster import Cluster

PORT = 9470
"""TCP port, the one of the hook's documentation."""
TOKEN_BYTES = 32
"""Random bytes of the token. A choice: as many as the hook's documentation makes."""
WAIT_S = 60.0
"""Seconds that the chain waits for the end of a step. A choice: longer than a step of the largest
model that trains here within minutes."""
PAUSE_S = 0.2
"""Seconds between two requests. A choice: small models take a step in less than 0.1 s, and with
the usual pause most of a run would be over."""


def write_token(path: Path) -> None:
    """A new token, which nobody else can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(TOKEN_BYTES) + "\n")


def hook_address(cluster: Cluster, host: int) -> str:
    """Where the hook of a job listens whose rank 0 is on this host."""
    return f"{cluster.management_address(host)}:{PORT}"


def hook_environment(cluster: Cluster, host: int, token: Path) -> dict[str, str]:
    """Environment of a job's trainers. host: of its rank 0."""
    return {ADDRESS: hook_address(cluster, host), TOKEN_FILE: str(token)}


def hook_lines(cluster: Cluster, first_hosts: range, token: Path) -> list[str]:
    """The [hook] table as lines of TOML. first_hosts: of each job."""
    addresses = [hook_address(cluster, host) for host in first_hosts]
    return [
        "[hook]",
        f"address = {json.dumps(addresses[0] if len(addresses) == 1 else addresses)}",
        f"token_file = {json.dumps(str(token))}",
        f"wait_s = {WAIT_S:g}",
        f"pause_s = {PAUSE_S:g}",
        "",
    ]
