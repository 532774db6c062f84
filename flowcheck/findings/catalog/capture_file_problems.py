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
    remedy="Nothing is lost by it. `ethtool -S INTERFACE` shows the NIC's own counters.",
)
CAPTURE_IS_A_FOLDER = Entry(
    "captured.is_a_folder",
    "{path}: is a folder, not a capture file",
    remedy="Name the capture files in it, as `{path}/*.pcap` does in a shell.",
)
NEITHER_FORMAT = "{path}: neither pcap nor pcapng"
IS_COMPRESSED = Entry(
    "captured.is_compressed",
    "{path}: neither pcap nor pcapng but compressed by {program}",
    also=("command",),
    section="arrival",
    cause="The capture was packed to be stored or sent; FlowCheck reads it as it was captured.",
    remedy="Unpack it with `{command}`, and name the unpacked file.",
)
IS_CHECKPOINT = Entry(
    "captured.is_checkpoint",
    "{path}: neither pcap nor pcapng but a checkpoint ({kind})",
    section="arrival",
    cause="A capture holds packets of the training job; a checkpoint holds its state.",
    remedy="Name the file that `tcpdump -i INTERFACE -s 0 -w FILE` wrote. A checkpoint is given to "
    "a chain: `flowcheck base FILE{this_run!o}` starts its replica from it, `flowcheck audit "
    "FILE{this_run!o}` compares the replica with it.",
)
IS_TEXT = Entry(
    "captured.is_text",
    "{path}: neither pcap nor pcapng but text, which begins {begin}",
    section="arrival",
    cause="The output of tcpdump without `-w`, a log, or a page that a download gave instead.",
    remedy="Name the file that `tcpdump -i INTERFACE -s 0 -w FILE` wrote: packets cannot be "
    "read out of what tcpdump or tshark print.",
)
IS_NO_CAPTURE = Entry(
    "captured.is_no_capture",
    "{path}: neither pcap nor pcapng (its first bytes are {begin})",
    cause="The file is of another kind, or of a format that only Wireshark reads.",
    remedy="Name a file of tcpdump, dumpcap or Wireshark. What only Wireshark reads is "
    "converted by `editcap -F pcapng OLD NEW`.",
)
IS_EMPTY = Entry(
    "captured.is_empty",
    "{path}: is empty",
    cause="The program that captured was ended before it wrote, or its disk was full.",
    remedy="Capture again, and let the program end by itself or by Ctrl-C: `tcpdump -i "
    "INTERFACE -s 0 -w FILE`.",
)
IS_TOO_SHORT = Entry(
    "captured.is_too_short",
    "{path}: {bytes} bytes are too short for a capture file",
    cause="The program that captured was ended while it began, or its disk was full.",
    remedy="Capture again: `tcpdump -i INTERFACE -s 0 -w FILE`.",
)
IS_MISSING = Entry(
    "captured.is_missing",
    "{path}: does not exist; capture files in {folder}: {there}",
    between=", ",
    cause="The path is misspelt, or the file was moved.",
    remedy="Correct the path; a relative one begins at the working directory (`pwd`).",
)
"""there: names of files, and one of these."""
MORE_CAPTURES = Entry("captured.more_are_there", "{count} more")
NO_CAPTURES = Entry("captured.none_are_there", "none")
NO_CAPTURES_LISTED = Entry("captured.none_can_be_listed", "none that can be listed")
NO_CAPTURE_FOLDER = Entry(
    "captured.folder_is_missing", "none, since that folder does not exist either"
)
IS_UNREADABLE = Entry(
    "captured.is_unreadable",
    "{path}: cannot be opened: {error}; this command runs as {user}",
    remedy="Run the command as root, or give this user the right to read it (`chmod`, `chown`).",
)
OTHER_LINK_TYPE = Entry(
    "captured.other_link_type",
    "{path}: has link type {number}, {name}, and only Ethernet (1) has the frames that a "
    "mirror port sends",
    section="arrival",
    cause="`tcpdump -i any`, a tunnel or a wireless interface gives frames of another kind.",
    remedy="Capture at the interface that the mirror port is connected to: `tcpdump -i eth1`, "
    "not `-i any`.",
)
OTHER_PCAP_VERSION = Entry(
    "captured.other_pcap_version",
    "{path}: is of pcap version {version}, and FlowCheck reads 2",
    cause="A very old program wrote it, or the file is damaged at its beginning.",
    remedy="Convert it: `editcap -F pcapng OLD NEW`.",
)
IS_TORN = Entry(
    "captured.is_torn",
    "{path}: is torn at byte {byte:,} of {bytes:,} ({what}): {frames:,} frames before it are whole",
    section="arrival",
    cause="The program that captured was killed, its disk became full, or the file was copied "
    "before it was whole.",
    remedy="To read them, cut the file there: `head -c {byte} {path!q} > NEW`. Steps whose "
    "frames come later are not in it; to have those, capture again.",
)
CAPTURE_REFUSED = Entry(
    "captured.refused",
    "{path}: cannot be read as a capture: {error}",
    remedy="Convert it: `editcap -F pcapng OLD NEW`, or capture again with `tcpdump -w FILE`.",
)

NO_PACKETS = Entry(
    "captured.no_packets",
    "the capture holds no packets",
    cause="Nothing came to the interface while it was captured, a capture filter left everything "
    "out, or the capture was stopped before it wrote.",
    remedy="Capture while the trainers run, without a filter, at the interface where the mirror's "
    "copies arrive: `tcpdump -i INTERFACE -w FILE`.",
)

# What lost packets of a capture mean for a replica.

LOSS_WITHOUT_EFFECT = Entry(
    "captured.loss_without_effect",
    "missing packets: {packets:,}; no step is lost by it: everything that a replica needs came in "
    "other packets, so every step in the capture stays exact",
)
LOSS_OF_UNREAD = Entry(
    "captured.loss_of_unread",
    "missing packets: {packets:,}; every collective that was read is complete, and no job was "
    "read, so what else the packets carried, and whether a step is lost, is unknown",
    section="loss",
    cause="The switch dropped copies, or the capture began or ended amid a connection; the column "
    "`lost` of the table of flows says on which one.",
    remedy="Capture from the trainers' start on, or state the model: `analyze --model "
    "FILE.py:FUNCTION`; once the job is read, the steps that a loss costs are told.",
)
LOSS_STOPS_REPLICA = Entry(
    "captured.loss_stops_replica",
    "missing packets: {packets:,}, and with them {bytes:,} bytes of step {steps} (of the job of "
    "communicator {communicator}): a missing byte is never guessed, so a replica {exact} and "
    "stops before step {first}",
    section="loss",
    cause="The switch dropped copies, or the capture did not take them in time; the column `lost` "
    "of the table of flows says on which connection.",
    remedy="See whether the monitor port is too slow (`flowcheck switch check --os OS --source "
    "PORT --monitor PORT --source-gbps N --monitor-gbps N`): mirror fewer ports to it, use a "
    "faster one, or mirror a second port that carries the same chunks. A live chain goes on behind "
    "the loss with two later checkpoints of the trainer: `flowcheck base FILE --then "
    "LATER{this_run!o}`.",
)
ENDS_INSIDE_STEP = Entry(
    "captured.ends_inside_step",
    "the capture ends inside step {step} (of the job of communicator {communicator}): the messages "
    "that had begun still had {packets:,} packets to come, and {bytes:,} bytes of the step are "
    "missing; a replica {exact} and stops before step {step}",
    section="loss",
    cause="The capture was stopped, or its file cut off, amid the step: no connection shows a gap "
    "before its last packet. If the last copies of the job were dropped, it looks the same.",
    remedy="Nothing is to be done for the steps before it; for the rest capture longer, or give "
    "all files of the capture.",
)
LOSS_IN_START_UP = Entry(
    "captured.loss_in_start_up",
    "missing packets: {packets:,}, and with them {bytes:,} bytes of the initial weights "
    "(of the job of communicator {communicator}): a replica begins with these elements tainted",
    remedy="A checkpoint of the trainer makes them exact (`flowcheck base FILE{this_run!o}`), or "
    "start the job again while the capture runs.",
)
LOSS_WITHOUT_JOB = Entry(
    "captured.loss_without_job",
    "missing packets: {packets:,}, and with them {bytes:,} bytes of collectives {collectives}; "
    "no job was read, so the steps they belong to are unknown. The other collectives are complete",
)
STAYS_EXACT = Entry("captured.stays_exact", "follows steps {first} to {last} exactly")
STAYS_EXACT_ONE = Entry("captured.stays_exact_one", "follows step {step} exactly")
NOTHING_EXACT = Entry("captured.nothing_exact", "applies no step")
OTHER_MODEL = Entry("captured.other_model", "{factory}: {mismatch}")
