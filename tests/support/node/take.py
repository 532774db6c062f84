"""Run in a virtual machine: captures so many frames from a bound NIC, and prints a JSON object.

take.py ADDRESS FRAMES: {"driver", "huge_pages", "counted", "sha256": of each frame}. A line
"ready" comes first, once the port listens.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from support import eal
from support.rings import counted, frames_in

from flowcheck.plane.shared_memory.frame_ring import FrameRing


def main(address: str, frames: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "ring"
        with FrameRing.create(path, slots=1024, live_source=True) as ring:
            eal._main(eal.Setup(device=address, rings=[str(path)], frames_max=frames, idle_us=500))
            found = {
                "counted": counted(ring),
                "sha256": [hashlib.sha256(frame).hexdigest() for frame in frames_in(ring)],
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
