"""What a SONiC switch answers to, on a real redis: run as `sonic-db-dump` or `config`.

Key layout, refusals and exit codes are those of sonic-utilities (config/main.py: add_span,
add_erspan, validate_mirror_session_config, remove) and of sonic-py-common's sonic_db_dump_load.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(os.environ.get("SONIC_FOLDER", "."))
BASES = {"CONFIG_DB": "4", "STATE_DB": "6"}


def redis(base: str, *words: str) -> object:
    """A command of redis' own client."""
    command = ["redis-cli", "-s", str(HERE / "redis.sock"), "-n", BASES[base], "--json", *words]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


EACH = """local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  table.insert(found, {key, redis.call('HGETALL', key)})
end
return found"""


def table(base: str, pattern: str) -> dict[str, dict[str, str]]:
    rows = redis(base, "EVAL", EACH, "0", pattern)
    assert isinstance(rows, list)
    return {key: dict(zip(flat[::2], flat[1::2], strict=True)) for key, flat in sorted(rows)}


def dump(words: list[str]) -> int:
    """sonic-db-dump -n BASE -y -k PATTERN"""
    said = dict(itertools.pairwise(words))
    rows = table(said["-n"], said["-k"])
    print(json.dumps({key: {"type": "hash", "value": row} for key, row in rows.items()}, indent=2))
    return 0


def fail(sentence: str) -> int:
    """click's ctx.fail"""
    print(f"Usage: config mirror_session [OPTIONS]\n\nError: {sentence}", file=sys.stderr)
    return 2


def add(name: str, row: dict[str, str]) -> int:
    sessions = table("CONFIG_DB", "MIRROR_SESSION|*")
    if f"MIRROR_SESSION|{name}" in sessions:
        print(f"Error: {name} already exists")
        return 0
    for other in sessions.values():
        for port in row["src_port"].split(","):
            same = "BOTH" in (row["direction"], other["direction"])
            if port in other["src_port"].split(",") and (
                same or row["direction"] == other["direction"]
            ):
                return fail(f"Source Interface {port} already has mirror config in same direction")
        if row.get("dst_port") and row["dst_port"] == other.get("dst_port"):
            return fail(f"Destination Interface {row['dst_port']} already has mirror config")
    if (HERE / "refuses").exists():
        return fail((HERE / "refuses").read_text())
    while (HERE / "hangs").exists():
        time.sleep(0.05)
    fields = [word for pair in row.items() for word in pair]
    redis("CONFIG_DB", "HSET", f"MIRROR_SESSION|{name}", *fields)
    status = "inactive" if (HERE / "inactive").exists() else "active"
    redis("STATE_DB", "HSET", f"MIRROR_SESSION_TABLE|{name}", "status", status)
    if (HERE / "hangs up").exists():
        (HERE / "hangs up").unlink()
        os.kill(int(os.environ["SONIC_SSHD"]), 9)
    return 0


def config(words: list[str]) -> int:
    match words:
        case ["mirror_session", "span", "add", name, to, ports, way]:
            row = {"type": "SPAN", "dst_port": to, "src_port": ports, "direction": way.upper()}
            return add(name, row)
        case ["mirror_session", "erspan", "add", name, *rest, ports, way]:
            keys = ("src_ip", "dst_ip", "dscp", "ttl", "gre_type", "queue")
            row = {"type": "ERSPAN", **dict(zip(keys, rest, strict=True)), "src_port": ports}
            row["gre_type"] = str(int(row["gre_type"], 16))
            return add(name, row | {"direction": way.upper()})
        case ["mirror_session", "remove", name]:
            redis("CONFIG_DB", "DEL", f"MIRROR_SESSION|{name}")
            redis("STATE_DB", "DEL", f"MIRROR_SESSION_TABLE|{name}")
            return 0
        case ["save", "-y"]:
            (HERE / "saved").write_text(json.dumps(table("CONFIG_DB", "*")))
            return 0
    return fail(f"No such command {words}")


def main() -> int:
    """By the name it is run as."""
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    with (HERE / "heard").open("a") as heard:
        heard.write(" ".join([name, *words]) + "\n")
    return dump(words) if name == "sonic-db-dump" else config(words)


if __name__ == "__main__":
    sys.exit(main())
