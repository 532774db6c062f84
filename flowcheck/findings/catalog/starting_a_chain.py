"""Starts of chains: what a job file asks of this machine, and what a running one says first."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Ports and devices.

NO_INTERFACE = Entry(
    "capture_port.no_interface",
    "there is no such interface where this command runs; there are {there}",
    also=("job",),
    section="arrival",
    cause="The name in `[[source]]` is of no interface in this network namespace.",
    remedy="Correct the name (`ip link` shows them), or start FlowCheck in the interface's "
    "namespace: `ip netns exec NAME flowcheck up {job!q}{this_run!o}`.",
)
NO_DEVICE = Entry(
    "capture_port.no_device",
    "this machine has no such PCI device; its network devices are {there}",
    section="arrival",
    cause="The address in `[[source]]` is of another machine, or misspelt.",
    remedy="State the address of one of them; `flowcheck doctor` shows which can capture.",
)
NO_PACKET_SOCKETS = Entry(
    "capture_port.no_packet_sockets",
    "may not open packet sockets (CAP_NET_RAW)",
    section="arrival",
    cause="FlowCheck does not run as root.",
    remedy="Start it as root, or by the unit `flowcheck@.service`.",
)
DPDK_NOT_BUILT = Entry(
    "capture_port.dpdk_not_built",
    "captures through DPDK are not possible here ({error})",
    section="arrival",
    cause="The C code of the capture was built without DPDK.",
    remedy="Install libdpdk-dev and build again, or read the capture file without DPDK; "
    "`flowcheck doctor` says more.",
)
BAD_PCI_ADDRESS = Entry(
    "capture_port.bad_pci_address",
    "not a PCI address, which is written as 0000:3b:00.0",
    remedy="Correct it. A name such as eth1 is an interface: write `interface` instead of `pci`.",
)

# Memory.

RINGS_TOO_LARGE = Entry(
    "start_memory.rings_too_large",
    "the rings and their staging need {need_mib:,} MiB and {free_mib:,} MiB of memory are free",
    section="processes",
    cause="Refused before anything started.",
    remedy="Lower `slots` or `slot_bytes` of `[ring]`, or `size_bytes` of `[staging]`; "
    "`flowcheck plan JOB.toml` shows the sum line by line.",
)
JOB_TOO_LARGE = Entry(
    "start_memory.job_too_large",
    "{account} = {bytes:,} bytes are needed, and {free_bytes:,} are free",
    remedy="Lower `keep_bytes` of `[replica]`, `[gradient_log]`, `slots` of `[ring]` or "
    "`size_bytes` of `[staging]`, or take a machine with more memory; `flowcheck plan "
    "JOB.toml` shows the sum.",
)

# What it says.

STARTING = Entry("live.starting", "starting in {run}; `flowcheck status{this_run!o}`")
JOB_IS_KNOWN = Entry(
    "live.job_is_known",
    "the job that was followed last is known: if it still runs, it is joined midstream",
)
CAPTURES = Entry(
    "live.captures",
    "every source is being captured: start training now, its start-up comes only once",
)
FOLLOWS = Entry("live.follows", "the job is learned; the replica is at step {step} and goes on")
STARTS_ANEW = Entry("live.starts_anew", "{rescued}; this chain starts anew")
KEPT_AFTER_FAILURE = Entry(
    "live.kept_after_failure", "the chain failed; its replica is kept in {folder}"
)
CHECKPOINT_WAITS = Entry(
    "live.checkpoint_waits",
    "its stages have ended and its checkpoint is being written: waiting for that",
)
STALLED = Entry(
    "replay.stalled",
    "nothing moved for {seconds} s; stuck in {stage}: {captured} of {frames} frames captured, "
    "{parsed} parsed, {extracted} extracted, {steps} steps applied",
    section="processes",
    cause="A replay stands still in that stage: its process is stopped or gets no processor.",
    remedy="Read the log of that stage.",
)
RUN_NOT_KEPT = Entry(
    "replay.run_not_kept",
    "the run directory of this replay was temporary, and is removed",
    also=("again",),
    cause="`--run` was not given.",
    remedy="`{again}` reads the captures again and keeps it, for commands with `--run DIR`.",
)
OPTIMIZER_ASSUMED = Entry(
    "replay.optimizer_assumed",
    "optimizer {name}: it never crosses the wire",
    remedy="State the trainer's with `--optimizer`.",
)
LEARNING_RATE_ASSUMED = Entry(
    "replay.learning_rate_assumed",
    "learning rate {rate}: it never crosses the wire",
    remedy="State the trainer's with `--lr`.",
)
