"""A real S3 server on loopback, of others' making: moto's, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from support.free import free_port

KEY, SECRET = "flowcheck", "a secret of nobody"
BUCKET = "box"
START_S = 90.0


@dataclass
class Server:
    """Where it listens; killed and begun again it has forgotten everything."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """Of s3fs.S3FileSystem."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.url}

    def client(self) -> Any:
        """boto3, which nothing of ours uses."""
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )  # fmt: skip

    def folder(self, prefix: str, into: Path) -> Path:
        """Every object below `prefix` as boto3 gives it."""
        client = self.client()
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        for one in found.get("Contents", []):
            place = into / one["Key"]
            place.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(BUCKET, one["Key"], str(place))
        return into / prefix


def begun(port: int) -> subprocess.Popen[bytes]:
    """moto_server, once it answers."""
    code = "from moto.server import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", code, "-H", "127.0.0.1", "-p", str(port)]
    environment = os.environ | {"MOTO_S3_CUSTOM_ENDPOINTS": f"http://127.0.0.1:{port}"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, **quiet)
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process
        except OSError:
            Event().wait(0.05)
    process.kill()
    raise AssertionError("the S3 server never came up")


@contextmanager
def server() -> Iterator[Server]:
    """With an empty bucket."""
    port = free_port()
    made = Server(port, begun(port))
    try:
        made.client().create_bucket(Bucket=BUCKET)
        yield made
    finally:
        made.process.kill()
        made.process.wait()
