"""`flowcheck doctor --live`: what a mirror port brings, and what has to change for it."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_RENDER = "`flowcheck switch render --os OS --source PORT --monitor PORT` prints the commands"
_WATCH_AGAIN = "then watch again"

# What was named, and whether it can be watched.

NEITHER_PORT_NOR_FILE = Entry(
    "mirror_port.neither_port_nor_file",
    "is no interface, no PCI address and no file here; the interfaces are {there}",
    cause="The name is misspelt, or the port is in another network namespace or has no interface "
    "since DPDK has it.",
    remedy="Name an interface (`ip link`), a PCI address as 0000:3b:00.0 (`flowcheck doctor` shows "
    "them) or a capture file; in a namespace `ip netns exec NAME flowcheck doctor --live PORT`.",
)
NAMED_TWICE = Entry("mirror_port.named_twice", "is named twice", remedy="Name each port once.")
NOT_A_FILE = Entry(
    "mirror_port.not_a_file",
    "is a pipe, socket or device",
    remedy="Name a capture file that is written whole, or the interface itself.",
)
WATCH_SECONDS = Entry(
    "mirror_port.watch_seconds",
    "must be from {least:g} to {most:g}",
    remedy="Long enough for some steps of the training: 10 is a good begin.",
)
OPTION_WITHOUT_PORT = Entry(
    "mirror_port.option_without_port",
    "is about ports, and none is named by --live",
    remedy="Name the port: `flowcheck doctor --live PORT`.",
)
NEED_BESIDE_PORT = Entry(
    "mirror_port.need_beside_port",
    "is about this machine, not about the ports that --live names",
    remedy="Leave one of the two out.",
)
NO_RIGHTS_FOR_PORT = Entry(
    "mirror_port.no_rights",
    "{port} cannot be watched: this process may not open packet sockets (CAP_NET_RAW)",
    cause="FlowCheck does not run as root. As root it gives up all other rights at once.",
    remedy="Run the command as root. A capture file can be looked at without rights.",
)
PORT_CANNOT_BE_OPENED = Entry(
    "mirror_port.cannot_be_opened",
    "{port} cannot be watched: {error}",
    cause="The interface went away, or the kernel refused a packet socket.",
    remedy="See `ip link` and start the command again.",
)
LOOP_DID_NOT_END = Entry(
    "mirror_port.loop_did_not_end",
    "the capture did not end within {seconds:g} s after it was told to",
    cause="The machine is overloaded, or the driver of the NIC hangs.",
    remedy="Run it again when the machine is less busy; `dmesg` shows a driver that hangs.",
)
CHAIN_HAS_PORT = Entry(
    "mirror_port.chain_unreadable",
    "{port} is captured by the chain of {run}, whose counters cannot be read: {why}",
    cause="A NIC that DPDK has serves one process; the chain's memory belongs to its own user.",
    remedy="Run the command as root or as the user of that chain; `flowcheck status{run!o}` shows "
    "the chain itself.",
)

# What came.

KIND = Entry("mirror_port.kind", "{frames:,} {kind}")
FRAMES_SEEN = Entry("mirror_port.frames_seen", "{frames:,} frames: {kinds}", between=", ")
NO_WRITES = Entry(
    "mirror_port.no_writes",
    "{frames:,} frames came ({kinds}), and none is a write of RoCE v2",
    between=", ",
    cause="The session's sources are other ports than the trainers' RDMA ports, the job does "
    "nothing at the moment, or it does not use RoCE v2 (TCP, InfiniBand, encryption).",
    remedy="Watch while the trainers train; see that the session's sources are the ports of their "
    "RDMA NICs, without a filter (ACL) that leaves UDP port 4791 out. NCCL says `NET/IB` in its "
    "log where it uses RDMA.",
)
NO_FRAME = Entry(
    "mirror_port.no_frame",
    "no frame came in {seconds:g} s, although the link is up",
    cause="The mirror session is shut (on NX-OS and OS10 each new one is), sends to another "
    "monitor port, or its sources were silent.",
    remedy="On the switch see that the session is up, that its monitor port is the one this cable "
    "leads to and its sources are the trainers' ports; watch while the trainers train. Here see "
    "that nothing filters (`tc filter show dev PORT ingress`).",
)
NO_FRAME_LINK_UNKNOWN = Entry(
    "mirror_port.no_frame_link_unknown",
    "no frame came in {seconds:g} s; whether the link is up is not known",
    cause="The cable or the mirror session is not up, or the session's sources were silent.",
    remedy="See link and session on the switch; watch while the trainers train.",
)
FILE_WITHOUT_FRAMES = Entry(
    "mirror_port.file_without_frames",
    "the file holds no frame",
    cause="Nothing came while it was captured, or a filter left everything out.",
    remedy="Capture while the trainers train: `tcpdump -i INTERFACE -s 0 -w FILE`.",
)
NO_FRAME_BUT_COUNTED = Entry(
    "mirror_port.no_frame_but_counted",
    "no frame came in {seconds:g} s, but the NIC counted {counters}",
    between=", ",
    cause="Frames reach the NIC and are lost in it: it has no buffer, filters them, or gives them "
    "to another owner (RoCE of the NIC itself, a virtual function).",
    remedy="Switch the NIC's own RoCE off (ConnectX: `mlxconfig -d DEVICE set ROCE_CONTROL=1`), "
    "and see its filters (`ethtool -n PORT`) and rings (`ethtool -g PORT`).",
)
PORT_IS_DOWN = Entry(
    "mirror_port.is_down",
    "the interface is down: no frame can arrive",
    cause="Nothing has switched it on since the machine started.",
    remedy="`ip link set PORT up`; the MTU must hold the longest frame: `ip link set PORT mtu "
    "9216`.",
)
IS_GONE = Entry(
    "mirror_port.is_gone",
    "the interface was taken away while it was watched",
    cause="Somebody removed or renamed it, moved it to another namespace, or gave the NIC to DPDK.",
    remedy="See `ip link`, and watch again.",
)
NO_LINK = Entry(
    "mirror_port.no_link",
    "the interface is up and has no link",
    cause="The cable or transceiver is not in, or the monitor port is shut or has another speed "
    "or error correction (FEC).",
    remedy="See the cable, and on the switch the state of the monitor port (`no shutdown`), its "
    "speed and FEC.",
)

# Both halves of the ring.

BOTH_HALVES = Entry(
    "mirror_port.both_halves",
    "of {hosts} both is here: what it sends and what is sent to it",
    between=" and ",
)
ONE_HALF = Entry(
    "mirror_port.one_half",
    "one half of the ring alone is here: what {source} sends to {destination} ({bytes:,} bytes); "
    "of no host both what it sends and what is sent to it{granted}",
    cause="The session mirrors one direction of one port. A ring's link carries all results but "
    "its sender's own part, so that no step is complete from it (a job that sends the rest on "
    "another connection apart).",
    remedy=f"Mirror the other direction of that port too, or one direction of a second port of "
    f"the ring; `flowcheck ports LAYOUT.toml` chooses them. {_RENDER}.",
)
GRANTED_UNSEEN = Entry(
    "mirror_port.granted_unseen",
    "; the other half is sent: {host} granted buffers {packets:,} times for data that no port "
    "shows",
)
SEVERAL_HALVES = Entry(
    "mirror_port.several_halves",
    "of no host both is here, what it sends and what is sent to it; the links are {links}",
    cause="One direction of several ports is mirrored. Two links of one ring carry every result "
    "between them; links of different jobs do not.",
    remedy="`flowcheck analyze FILE` of a capture of the start-up tells the coverage of each "
    "collective.",
)
LINK = Entry("mirror_port.link", "{source} to {destination}")
NO_DATA_YET = Entry(
    "mirror_port.no_data_yet",
    "{packets:,} write packets came, none with data of a collective",
    cause="Only small writes passed: the job waits, or it has not begun.",
    remedy="Watch while the trainers train.",
)

# Duplicates.

NO_DUPLICATES = Entry("mirror_port.no_duplicates", "no packet came twice")
SENT_AGAIN = Entry(
    "mirror_port.sent_again",
    "{packets:,} of {of:,} write packets of {links} came again, and {naks:,} NAKs refused packets: "
    "sent again after losses, not mirrored twice",
    between=", ",
)
MIRRORED_IN_PART = Entry(
    "mirror_port.mirrored_in_part",
    "{packets:,} of {of:,} write packets of {links} came again, though their receiver refused none "
    "and none is missing: mirrored twice, in part, or sent again for want of ACKs",
    between=", ",
    cause="Two sources of the session see some packets: the ways of a link that lead over two "
    "switches, or a session that was changed meanwhile. A queue pair whose ACKs are lost sends "
    "again as well, once its time is over.",
    remedy="See that one source of the session alone has that link: one direction, the same at all "
    "ports, at one switch. Copies do no harm but for the monitor port's rate.",
)
CAME_AGAIN = Entry(
    "mirror_port.came_again",
    "{packets:,} of {of:,} write packets of {links} came again, with {naks:,} NAKs: sent again "
    "after losses, or mirrored twice; nothing here tells which",
    between=", ",
    cause="Refusals (NAKs) that tell it take the other direction of the link, which this port may "
    "not show; or they are too few for so many copies.",
    remedy="Mirror both directions of that port and watch again; in the trainers' NICs see the "
    "counters of packets sent again (ConnectX: `packet_seq_err`, `local_ack_timeout_err`).",
)
MIRRORED_TWICE = Entry(
    "mirror_port.mirrored_twice",
    "nearly every packet of {links} came twice ({packets:,} of {of:,} write packets)",
    cause="Two sources of the session see the same packet: the port where it enters the switch "
    "(rx) and the one where it leaves (tx), or ports of two switches on its way. The copies take "
    "twice the monitor port's rate and add nothing.",
    remedy=f"Mirror one direction, the same at all ports (rx: what the servers send), and each "
    f"link at one switch. {_RENDER}.",
)
SECOND_MIRROR = Entry(
    "mirror_port.second_mirror",
    "{links} is on {ports}: copies that each port can repair the other by",
    between=", ",
)

# Encapsulation, truncation, checksums.

PLAIN = Entry("mirror_port.plain", "none")
ENCAPSULATED = Entry("mirror_port.encapsulated", "{kinds}; FlowCheck takes it off", between=", ")
TUNNELLED = Entry("mirror_port.tunnelled", "{kind} around {frames:,} frames")
TAGGED = Entry("mirror_port.tagged", "VLAN {vlans} on {frames:,} frames")
TAGGED_ANY = Entry("mirror_port.tagged_any", "a VLAN tag on {frames:,} frames")
WHOLE = Entry("mirror_port.whole", "every frame is whole")
TRUNCATED = Entry(
    "mirror_port.truncated",
    "{frames:,} of {of:,} frames are cut, most to {bytes:,} bytes: their payload is lost",
    cause="The mirror session truncates its copies, or the tunnel's path has too small an MTU.",
    remedy="Switch truncation off: NX-OS `mtu` of the session, EOS `monitor session NAME "
    "truncate`, SONiC `truncate_size`, Cumulus and Onyx `truncate`, Junos "
    "`maximum-packet-length`. `flowcheck switch list` has each system's word.",
)
ICRC_RIGHT = Entry("mirror_port.icrc_right", "right in all {frames:,} frames that were checked")
ICRC_RIGHT_SAMPLED = Entry(
    "mirror_port.icrc_right_sampled",
    "right in all {frames:,} frames that were checked, from some moment on one of {every}",
)
ICRC_SOME_WRONG = Entry(
    "mirror_port.icrc_some_wrong",
    "wrong in {frames:,} of {of:,} frames that were checked: their bytes are lost",
    cause="A cable, a transceiver or a port on the way damages frames.",
    remedy="See the error counters of the monitor port and of this NIC (`ethtool -S PORT`), clean "
    "or replace cable and transceiver.",
)
ICRC_NONE_RIGHT = Entry(
    "mirror_port.icrc_none_right",
    "wrong in each of {frames:,} frames, so it was left out: bytes are not checked",
    cause="Something rewrites what the checksum covers (addresses by NAT, the UDP port, the "
    "payload). TTL, DSCP, ECN, MAC addresses and VLAN tags are not covered: their rewriting does "
    "no harm.",
    remedy="Mirror before that device (rx of the servers' own ports), or state `icrc_every = 0` "
    "in `[parse]` of the job file: FlowCheck then takes every frame unchecked.",
)

# Loss.

NOTHING_MISSING = Entry(
    "mirror_port.nothing_missing", "no packet between the first and the last that came is missing"
)
LOST_BEFORE = Entry(
    "mirror_port.lost_before",
    "{packets:,} packets never came ({percent:.3g} % of those sent; their sequence numbers tell): "
    "{links}{beside}",
    between=", ",
    cause="The switch dropped copies, for the monitor port is slower than what is mirrored to it, "
    "has a small buffer or a policer; or the NIC lost them.",
    remedy="Mirror less to this port (one direction, fewer ports), or use a faster one: `flowcheck "
    "switch check --os OS --source PORT --monitor PORT --source-gbps N --monitor-gbps N` adds it "
    "up. The switch counts them as discards of the monitor port; take a rate limit or policer off "
    "the session.",
)
LOST_OF_LINK = Entry("mirror_port.lost_of_link", "{packets:,} of {source} to {destination}")
LOST_OF_LINK_AT_MOST = Entry(
    "mirror_port.lost_of_link_at_most", "up to {packets:,} of {source} to {destination}"
)
CAME_DAMAGED = Entry(
    "mirror_port.came_damaged",
    "{packets:,} packets are missing, no more than frames came cut or damaged: none is known to "
    "be lost on the way",
)
BESIDE_DAMAGED = Entry(
    "mirror_port.beside_damaged",
    "; {packets:,} more are missing, no more than frames came cut or damaged: whether any of them "
    "was lost on the way cannot be told",
)
LOST_UNCERTAIN = Entry(
    "mirror_port.lost_uncertain",
    "{packets:,} packets are missing, and {dropped:,} frames were dropped here: at least {least:,} "
    "were lost before this machine{beside}",
    cause="This machine did not take every frame.",
    remedy="Give the command a core of its own, or watch for a shorter time.",
)
LOST_IN_A_ROW = Entry(
    "mirror_port.lost_in_a_row",
    "{mean:.3g} of a queue pair on average, {longest:,} at most, in {gaps:,} gaps: the "
    "mean is `--burst-packets` of `flowcheck plan-loss`{unlisted}{damaged}",
)
GAPS_UNLISTED = Entry(
    "mirror_port.gaps_unlisted",
    "; {packets:,} packets of earlier gaps are not counted, as the table has no place for more of "
    "one queue pair",
)
GAPS_OF_DAMAGED = Entry(
    "mirror_port.gaps_of_damaged",
    "; up to {packets:,} packets in gaps came cut or damaged",
)
LOST_IN_NIC = Entry(
    "mirror_port.lost_in_nic",
    "the NIC lost frames: {counters}",
    between=", ",
    cause="Its receive ring was full, or it had no buffer for a frame: bursts come faster than "
    "this machine takes them.",
    remedy="Lengthen its ring (`ethtool -G PORT rx 8192`), give the capture cores of the NIC's "
    "NUMA node (`flowcheck doctor`), or bind the port to DPDK (`scripts/bind-nic bind ADDRESS`).",
)
DAMAGED = Entry(
    "mirror_port.damaged",
    "frames arrived damaged: {counters}",
    between=", ",
    cause="Cable, transceiver, error correction (FEC) or an MTU of this interface that is too "
    "small.",
    remedy="Clean or replace cable and transceiver; `ip link set PORT mtu 9216`.",
)
COUNTER = Entry("mirror_port.counter", "{name} {frames:,}")
DROPPED_HERE = Entry(
    "mirror_port.dropped_here",
    "this command could not take {counters}; these figures rest on a sample: {figures}",
    between=", ",
    cause="More came than this process could look at. A chain has several processes and may do "
    "better.",
    remedy="Watch again with less load on the machine; the figures of what was dropped are whole.",
)
ICRC_SAMPLED = Entry(
    "mirror_port.icrc_sampled", "frames waited here, so a sample stands for: {figures}"
)
TABLE_FULL = Entry(
    "mirror_port.table_full",
    "{packets:,} packets belong to more queue pairs than the table has room for",
    cause="More queue pairs pass this port than FlowCheck follows at once, or somebody makes them "
    "up.",
    remedy="Leave ports of other jobs out of the session.",
)

# Load and bursts.

LOAD = Entry(
    "mirror_port.load",
    "{mean:.3g} Gb/s on average, {long:.3g} in 100 ms, {short:.3g} in 1 ms, of {speed:g} Gb/s",
)
LOAD_OF_UNKNOWN = Entry(
    "mirror_port.load_of_unknown",
    "{mean:.3g} Gb/s on average, {long:.3g} in 100 ms, {short:.3g} in 1 ms; the port's speed is "
    "unknown",
)
LOAD_OF_CHAIN = Entry(
    "mirror_port.load_of_chain", "{mean:.3g} Gb/s on average, {long:.3g} in 100 ms"
)
AT_LIMIT = Entry(
    "mirror_port.at_limit",
    "{long:.3g} of {speed:g} Gb/s in 100 ms: the port is at its limit, what is beyond is dropped "
    "by the switch",
    cause="What is mirrored here comes, together, as fast as the port is or faster.",
    remedy=f"Mirror one direction, or fewer ports to this one, or use a faster monitor port. "
    f"{_RENDER}.",
)
BURST = Entry(
    "mirror_port.burst",
    "{bytes:,} bytes in the longest run of busy milliseconds ({ms:,} ms); a reader of the mean "
    "rate has up to {backlog:,} bytes to hold, {slots:,} slots of a ring",
)
LINE_RUN = Entry("mirror_port.line_run", "{bytes:,} bytes came in {ms:,} ms at line rate")

# A chain beside.

CHAIN_BESIDE = Entry(
    "mirror_port.chain_beside",
    "the chain of {run} captures this port too, and lost nothing meanwhile; the kernel gives each "
    "its own copy of a frame",
)
CHAIN_BESIDE_LOST = Entry(
    "mirror_port.chain_beside_lost",
    "the chain of {run} captures this port too, and lost frames meanwhile: {counters}",
    between=", ",
    cause="The chain did not take them in time.",
    remedy="`flowcheck status{run!o}` shows where; give it cores of its own and a larger `[ring]`.",
)
CHAIN_ALONE = Entry(
    "mirror_port.chain_alone",
    "the chain of {run} has this port: these are its counters of {seconds:g} s, no frame was taken "
    "from it",
)

# The switch.

SWITCH_WORDS = Entry(
    "mirror_port.switch_words",
    "on {title} truncation is {truncation}; directions are {directions}",
    between=", ",
)
RX_WORD = Entry("mirror_port.rx_word", "{word} (what a server sends)")
TX_WORD = Entry("mirror_port.tx_word", "{word} (what is sent to it)")
BOTH_WORD = Entry("mirror_port.both_word", "{word} (both)")
