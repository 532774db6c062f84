"""What one program that writes captures does so and another otherwise: none of it is against NCCL's
or a mirror's ways, and a decoder may rely on none of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Manners:
    """The manners of one such program."""

    halving: bool = True
    """Kernels of tiny operations have fewer threads."""
    ring: str = ""
    """Order of hosts: by rank; "one": another one; "each": another one on each channel."""
    startup: str = "ddp"
    """Before the first step: all of DDP's constructor; "weights": only those; "": nothing."""
    rebuilt: bool = True
    """The first step is one bucket, then buckets are told; else they are the same all along."""
    values: str = ""
    """Of gradients: drawn; "bytes": any, and partial sums are no sums; "sparse": mostly zeros;
    "whole": small whole numbers; "same": those of the first step in every one."""
    filler: str = ""
    """Behind the last element of a line: chance; "zero"; "stale": as much of the message again."""
    turns: str = ""
    """Connections take turns by chance; "in order": each does all it can, one after the other."""
    acked: str = ""
    """Messages, some together; "none": nothing is acknowledged; "each": each at once."""
    granted: str = ""
    """As many clear-to-sends as fit the window, by chance; "first": all of them before data."""
    lived: bool = False
    """Connections are old: counters begin anywhere, packet numbers shortly before they wrap."""
    same_qpns: bool = False
    """Every host numbers its queue pairs from the same number on."""
    numbers_of_nics: bool = False
    """Each NIC numbers its queue pairs by itself, as real ones do; else a node all of its NICs'."""
    udp: str = ""
    """Source ports by the kernel's rule; "any": one for each direction; "one": one for all."""
    macs: str = ""
    """Of the ports; "router": all frames come from and go to one."""
    aligned: bool = True
    """Receive buffers begin at a multiple of 2 MiB."""
    storage: str = ""
    """What reads of storage are answered by: responses and sends; "writes"; "immediate": these
    with an immediate."""
    tags: str = ""
    """Clear-to-send names the sender's rank; "zero": it names nobody."""

    clock: str = ""
    """A microsecond a frame, and pauses; "even": no pauses; "coarse": milliseconds; "equal"."""
    container: str = ""
    """pcap of microseconds; "nano"; "big": of the other byte order; "ng": pcapng."""
    fcs: bool = False
    """Frames end with Ethernet's check sequence."""
    icrc: str = ""
    """As RoCE has it; "zero"."""
    snap: int = 0
    """Bytes kept of a frame; 0: all."""
    merged: bool = False
    """Mirror points write one file, each frame once; else one each."""
    first: float = 0.0
    """The capture begins at this part of all frames."""
    until: float = 1.0
