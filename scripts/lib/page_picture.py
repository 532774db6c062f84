"""Draws flowcheck/ops/watch/page/page.png anew: the page in a real Chromium, with the recorded
state that tests/data/README.md describes, as if it had been recorded just now.

    PYTHONPATH=. .venv/bin/python scripts/lib/page_picture.py
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from PIL import Image  # noqa: E402
from support.chromium import MISSING, PATH, chromium  # noqa: E402
from support.shown import DATA, DRAWN, Told, serving  # noqa: E402

from flowcheck.ops.watch.state.chain_state import decode_state  # noqa: E402

STATE = "state-lost.json"
PICTURE = ROOT / "flowcheck/ops/watch/page/page.png"
HEIGHT = 1900
"""Pixels. More than the page needs: a scroll bar would take from its width."""
SINCE_1970_NS = 10**18
"""Nanoseconds. What is less counts from another time: a span."""


def moved(value: Any, by_ns: int, key: str = "") -> Any:
    """A state with every time so much later."""
    if isinstance(value, dict):
        return {name: moved(one, by_ns, name) for name, one in value.items()}
    if isinstance(value, list):
        return [moved(one, by_ns, key) for one in value]
    is_time = key.endswith("_ns") and isinstance(value, int) and value > SINCE_1970_NS
    return value + by_ns if is_time else value


def draw(picture: Path) -> None:
    """Raises SystemExit where there is no Chromium."""
    if PATH is None:
        sys.exit(MISSING)
    state = json.loads((DATA / STATE).read_bytes())
    late = moved(state, time.time_ns() - state["time_ns"])
    told = Told(decode_state(json.dumps(late).encode()))
    with (
        tempfile.TemporaryDirectory() as profile,
        chromium(Path(profile)) as tabs,
        serving(told) as server,
    ):
        tab = tabs()
        tab.ask("Emulation.setTimezoneOverride", timezoneId="UTC")
        tab.open(server.url, height=HEIGHT)
        tab.until(DRAWN)
        tab.size(
            1280,
            tab.value(
                "Math.ceil(document.querySelector('#page').getBoundingClientRect().bottom) + 40"
            ),
        )
        tab.picture(picture, whole=False)
        tab.close()


if __name__ == "__main__":
    draw(PICTURE)
    rare_colours_too = Image.Quantize.MAXCOVERAGE
    Image.open(PICTURE).convert("RGB").quantize(256, rare_colours_too).save(PICTURE, optimize=True)
    print(PICTURE)
