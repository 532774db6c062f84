"""Entry point of group `torch.backends`: registers the lab's "roce" backend when torch is
imported. Without FLOWCHECK_LAB_INTERFACE in the environment it returns at once and imports
nothing."""

from __future__ import annotations

import os
import sys
from typing import Any


def register() -> None:
    """Registers "roce" as a backend of torch.distributed, and as the default for CPU tensors."""
    if not os.environ.get("FLOWCHECK_LAB_INTERFACE"):
        return
    from flowcheck.lab.roce_backend.trainer_environment import read_settings

    # A setting that is not understood ends the process here, not at a collective.
    settings = read_settings()

    import torch
    import torch.distributed as dist

    # MKL may round a process' first square roots otherwise where threads take them at once
    # (pytorch issue 188792): a trainer here stands for one on GPUs, which has no such first call.
    for dtype in (torch.float32, torch.float64):
        torch.ones(1, dtype=dtype).sqrt()
    if not dist.is_available():
        sys.exit("flowcheck lab: this torch is built without torch.distributed")

    if "roce" in dist.Backend.backend_list:
        return  # two distributions on the path may name this entry point

    from flowcheck.lab.roce_backend.process_group import creator

    dist.Backend.register_backend("roce", creator(settings), devices=["cpu"])
    dist.Backend.default_device_backend_map["cpu"] = "roce"
    # Gloo takes the address the host's name stands for, which is every host's own loopback here:
    # its ranks would never meet, and those that only listen would wait for their time limit.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", settings.first_interface)
    announce_gloo(dist.distributed_c10d)


def announce_gloo(c10d: Any) -> None:
    """Logs once that a script created a gloo group, which does not use the emulated NIC."""
    gloo = getattr(c10d, "ProcessGroupGloo", None)
    if gloo is None:
        return

    def announced(self: Any, *arguments: Any, **options: Any) -> None:
        if not announced.__dict__.setdefault("said", False):
            announced.__dict__["said"] = True
            print(
                "flowcheck lab: this script names gloo, so that group's traffic is TCP, not RoCE, "
                "and no replica can follow it; leave the backend out, or name it roce",
                file=sys.stderr,
                flush=True,
            )
        gloo.__init__(self, *arguments, **options)

    c10d.ProcessGroupGloo = type("ProcessGroupGloo", (gloo,), {"__init__": announced})
