"""What the C core finds in a file that is no whole capture. The names are rows of
dpdk_ext/core/fc_error_table.h.

Each stands in a finding of `capture_file_problems`, which names the file and says what to do.
"""

from __future__ import annotations

from flowcheck.findings.finding import Entry

CAPTURE_WITHOUT_MEMORY = Entry("capture_file.without_memory", "no memory to open {path}")
CAPTURE_TOO_SHORT = Entry("capture_file.too_short", "{path} is too short to be a capture file")
CAPTURE_HEADER_CUT = Entry("capture_file.header_cut", "{path} ends inside its file header")
CAPTURE_OF_OTHER_VERSION = Entry(
    "capture_file.of_other_version",
    "{path} has pcap version {version}; this program reads version 2",
)
CAPTURE_NOT_ETHERNET = Entry(
    "capture_file.not_ethernet",
    "{path} has link type {link_type}, this program reads Ethernet (1)",
)
CAPTURE_FORMAT_UNKNOWN = Entry(
    "capture_file.format_unknown",
    "{path} is neither pcap nor pcapng (first word {first_word:08x})",
)

# What lies at the byte where a file is torn.

TORN_AT = ("path", "byte", "frames")
TORN_IN_RECORD_HEADER = Entry(
    "capture_file.torn_in_record_header", "inside a record header", also=TORN_AT
)
TORN_FRAME_LENGTH = Entry(
    "capture_file.torn_frame_length", "a frame of impossible length", also=TORN_AT
)
TORN_IN_FRAME = Entry("capture_file.torn_in_frame", "inside a frame", also=TORN_AT)
TORN_BYTE_ORDER = Entry(
    "capture_file.torn_byte_order", "a section without byte order", also=TORN_AT
)
TORN_SECTION_VERSION = Entry(
    "capture_file.torn_section_version", "a section of a newer pcapng version", also=TORN_AT
)
TORN_INTERFACE = Entry(
    "capture_file.torn_interface",
    "an interface description that is too short, or too many of them",
    also=TORN_AT,
)
TORN_PACKET_BLOCK_SHORT = Entry(
    "capture_file.torn_packet_block_short", "a packet block too short", also=TORN_AT
)
TORN_PACKET_INTERFACE = Entry(
    "capture_file.torn_packet_interface",
    "a packet of an interface without description",
    also=TORN_AT,
)
TORN_FRAME_OVER_BLOCK = Entry(
    "capture_file.torn_frame_over_block", "a frame longer than its block", also=TORN_AT
)
TORN_IN_BLOCK_HEADER = Entry(
    "capture_file.torn_in_block_header", "inside a block header", also=TORN_AT
)
TORN_IN_SECTION_HEADER = Entry(
    "capture_file.torn_in_section_header", "inside a section header", also=TORN_AT
)
TORN_IN_BLOCK = Entry("capture_file.torn_in_block", "inside a block", also=TORN_AT)
