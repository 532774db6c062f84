"""What is wrong with capture files and interfaces, or with what was stated about them."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_RIGHT_ICRC = Entry(
    "captured.no_right_icrc",
    "no frame has a correct checksum (ICRC), so frames were read without checking it: something "
    "on the way rewrote their headers, or they never had a checksum",
    cause="The mirror rewrites headers (a VLAN tag, a TTL), or a program made the capture without "
    "checksums.",
)
BYTES_UNCHECKED = Entry(
    "captured.bytes_unchecked", "its bytes are right: no frame has a correct checksum (ICRC)"
)
SNAPPED = Entry(
    "captured.cut_by_snap_length",
    "{frames:,} frames were cut by the capture's snap length: their payload is lost",
    remedy="Capture whole frames, for example `tcpdump -s 0`.",
)
COPIES_DIFFER = Entry(
    "captured.copies_differ", "{bytes:,} bytes were captured twice, with different values"
)
UNASSIGNED = Entry("captured.packets_of_no_message", "{packets:,} packets fit no message")
NO_PACKET_SOCKET = Entry(
    "captured.no_packet_socket",
    "this process has no packet socket at {interface}: frames that the kernel drops there are not "
    "known",
    cause="The kernel's count of dropped frames belongs to a socket that this process does not "
    "have.",
    remedy="Nothing is lost by it. `ethtool -S INTERFACE` shows the NIC's own counters.",
)
CAPTURE_IS_A_FOLDER = Entry(
    "captured.is_a_folder", "{path}: is a folder; name the capture files in it"
)
OTHER_MODEL = Entry("captured.other_model", "{factory}: {mismatch}")
