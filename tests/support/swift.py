"""OpenStack Swift on loopback, with its S3 interface: Debian's packages swift-proxy, swift-account,
swift-container, swift-object and memcached, in processes of this test alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from support.free import free_port
from support.s3 import BUCKET

KEY, SECRET = "test:tester", "testing"
START_S = 40.0
SERVERS = ("account", "container", "object")
PIPELINE = (
    "headed catch_errors gatekeeper healthcheck cache s3api tempauth bulk slo dlo proxy-server"
)
FILTERS = ("healthcheck", "catch_errors", "gatekeeper", "bulk", "slo", "dlo")
HEADED = '''
def factory(conf, **own):
    """Debian's eventlet sends an end of chunks behind answers to HEAD that tell no length."""
    def made(app):
        def answer(environ, start):
            def begun(status, headers, exc=None):
                told = [key.lower() for key, _ in headers]
                if environ["REQUEST_METHOD"] == "HEAD" and "content-length" not in told:
                    headers = [*headers, ("Content-Length", "0")]
                return start(status, headers, exc)
            return app(environ, begun)
        return answer
    return made
'''


def missing() -> str:
    """What of it is not installed; empty: nothing."""
    words = ("swift-proxy-server", "swift-object-server", "swift-ring-builder", "memcached")
    return ", ".join(word for word in words if shutil.which(word) is None)


def options(port: int) -> dict[str, Any]:
    """Of s3fs.S3FileSystem."""
    own = {"s3": {"addressing_style": "path"}, "region_name": "us-east-1"}
    url = f"http://127.0.0.1:{port}"
    return {"key": KEY, "secret": SECRET, "endpoint_url": url, "config_kwargs": own}


def client(port: int) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id=KEY,
        aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip


@contextmanager
def swift(folder: Path) -> Iterator[int]:
    """Its port, with an empty bucket. Its files lie in `folder`, on a disk that takes xattrs."""
    ports = {name: free_port() for name in (*SERVERS, "proxy", "memcached")}
    _configure(folder, ports)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    words = [["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(ports["memcached"])]]
    words += [[f"swift-{n}-server", str(folder / f"{n}.conf")] for n in (*SERVERS, "proxy")]
    running = []
    try:
        for one in words:
            with (folder / f"{Path(one[0]).name}.log").open("wb") as log:
                running.append(subprocess.Popen(one, env=environment, stdout=log, stderr=log))
        _wait(f"http://127.0.0.1:{ports['proxy']}/healthcheck")
        client(ports["proxy"]).create_bucket(Bucket=BUCKET)
        yield ports["proxy"]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def _configure(folder: Path, ports: dict[str, int]) -> None:
    (folder / "devices" / "d1").mkdir(parents=True)
    (folder / "headed.py").write_text(HEADED)
    common = f"bind_ip = 127.0.0.1\nswift_dir = {folder}\nuser = root\nworkers = 0\n"
    for name in SERVERS:
        ring = ["swift-ring-builder", str(folder / f"{name}.builder")]
        device = [f"r1z1-127.0.0.1:{ports[name]}/d1", "1"]
        for words in (["create", "4", "1", "1"], ["add", *device], ["rebalance"]):
            subprocess.run([*ring, *words], check=False, capture_output=True)
        (folder / f"{name}.conf").write_text(
            f"[DEFAULT]\n{common}bind_port = {ports[name]}\ndevices = {folder}/devices\n"
            f"mount_check = false\n[pipeline:main]\npipeline = {name}-server\n"
            f"[app:{name}-server]\nuse = egg:swift#{name}\n"
        )
    plain = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in FILTERS)
    (folder / "proxy.conf").write_text(
        f"[DEFAULT]\n{common}bind_port = {ports['proxy']}\n[pipeline:main]\npipeline = {PIPELINE}\n"
        "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
        "[filter:headed]\npaste.filter_factory = headed:factory\n"
        "[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = testing .admin\n"
        "[filter:s3api]\nuse = egg:swift#s3api\nlocation = us-east-1\n"
        f"[filter:cache]\nuse = egg:swift#memcache\n"
        f"memcache_servers = 127.0.0.1:{ports['memcached']}\n" + plain
    )


def _wait(url: str) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        Event().wait(0.1)
    raise AssertionError("swift never came up")
