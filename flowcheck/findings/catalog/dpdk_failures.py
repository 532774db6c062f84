"""What DPDK, a port or a copy engine refuses when a capture starts or runs. The names are rows of
dpdk_ext/core/fc_error_table.h."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

SHORT = "This process got no more memory from the kernel."
FREE = "Free memory on the machine (`free -m`), then start the chain again."
DRIVER = "The driver of the card refused."
DOCTOR = "Read the lines of DPDK (EAL) before it; `flowcheck doctor` checks driver, huge pages and "
DOCTOR += "rights."
BINDING = "`flowcheck doctor` tells which driver and which binding the device needs."

DPDK_STARTED_TWICE = Entry(
    "dpdk.started_twice",
    "DPDK was started in this process before; it can be started only once",
    cause="A process starts DPDK once, whatever became of it.",
    remedy="Start the command again, in a new process.",
)
DPDK_LOG_WITHOUT_MEMORY = Entry(
    "dpdk.log_without_memory", "no memory for DPDK's log", cause=SHORT, remedy=FREE
)
DPDK_NOT_STARTED = Entry(
    "dpdk.not_started",
    "DPDK did not start: {reason}",
    also=("errno",),
    cause="DPDK refused its arguments, its devices, or got no memory.",
    remedy=DOCTOR,
)
PORT_MISSING = Entry(
    "dpdk.port_missing",
    "{subject}: there is no port {name} (ports: {ports})",
    cause="DPDK knows no device of this name.",
    remedy=BINDING,
)
PORT_NOT_PROBED = Entry(
    "dpdk.port_not_probed",
    "{subject}: there is no port {name} (ports: {ports}); DPDK said: {complaints}",
    cause="The driver of the device did not take it.",
    remedy=BINDING,
)
PORT_REQUEST_REFUSED = Entry(
    "dpdk.port_request_refused",
    "{subject}: {queues} queues, buffers of {buffer_bytes} and frames of {frame_bytes} bytes are "
    "not possible",
    also=("name",),
    cause="DPDK counts the bytes of a buffer and of a frame in 16 bits.",
    remedy="Lower `slot_bytes` of `[ring]` in the job file.",
)
PORT_INFO_NOT_READ = Entry(
    "dpdk.port_info_not_read",
    "{subject}: its device information cannot be read: {reason}",
    also=("name", "errno"),
    cause=DRIVER,
    remedy=DOCTOR,
)
PORT_QUEUES_TOO_MANY = Entry(
    "dpdk.port_queues_too_many",
    "{subject}: the port has {queues} receive queues, {wanted} were asked for",
    also=("name",),
    cause="Each ring of a source takes one receive queue of the card.",
    remedy="State fewer `queues` of the source in the job file.",
)
PORT_BUFFERS_WITHOUT_MEMORY = Entry(
    "dpdk.port_buffers_without_memory",
    "{subject}: no memory for {buffers:,} packet buffers of {buffer_bytes} bytes ({mib} MiB): "
    "{reason}",
    also=("errno",),
    cause="The packet buffers lie in huge pages, and too few are free.",
    remedy="`scripts/hugepages reserve N`; `flowcheck plan job.toml` shows the sum.",
)
PORT_NOT_CONFIGURED = Entry(
    "dpdk.port_not_configured",
    "{subject}: cannot be set up with {queues} queues: {reason}",
    also=("name", "errno"),
    cause=DRIVER,
    remedy=DOCTOR,
)
PORT_DESCRIPTORS_REFUSED = Entry(
    "dpdk.port_descriptors_refused",
    "{subject}: refuses {descriptors} descriptors: {reason}",
    also=("name", "errno"),
    cause=DRIVER,
    remedy=DOCTOR,
)
PORT_QUEUE_REFUSED = Entry(
    "dpdk.port_queue_refused",
    "{subject}: queue {queue} cannot be set up with {descriptors} descriptors and buffers of "
    "{buffer_bytes} bytes: {reason}",
    also=("name", "errno"),
    cause=DRIVER,
    remedy=DOCTOR,
)
PORT_NOT_PROMISCUOUS = Entry(
    "dpdk.port_not_promiscuous",
    "{subject}: does not go into promiscuous mode, so it would not see mirrored frames: {reason}",
    also=("name", "errno"),
    cause="Mirrored frames have the addresses of other machines; a port takes them in promiscuous "
    "mode alone.",
    remedy="Give a physical port: virtual functions need `ip link set DEV vf N trust on` on the "
    "host.",
)
PORT_NOT_STARTED = Entry(
    "dpdk.port_not_started",
    "{subject}: does not start: {reason}",
    also=("name", "errno"),
    cause=DRIVER,
    remedy=DOCTOR,
)
ENGINE_MISSING = Entry(
    "dpdk.engine_missing",
    "{subject}: there is no copy engine {name} (engines: {engines})",
    cause="DPDK knows no DMA device of this name.",
    remedy=BINDING,
)
ENGINE_NOT_PROBED = Entry(
    "dpdk.engine_not_probed",
    "{subject}: there is no copy engine {name} (engines: {engines}); DPDK said: {complaints}",
    cause="The driver of the device did not take it.",
    remedy=BINDING,
)
ENGINE_COPIES_NO_MEMORY = Entry(
    "dpdk.engine_copies_no_memory",
    "{subject}: {name} cannot copy from memory to memory",
    cause="The device is a DMA engine of another kind.",
    remedy="Name another engine, or leave copy engines out of the job file.",
)
ENGINE_NOT_CONFIGURED = Entry(
    "dpdk.engine_not_configured",
    "{subject}: copy engine {name} cannot be set up with {descriptors} descriptors: {reason}",
    also=("errno",),
    cause=DRIVER,
    remedy=DOCTOR,
)
ENGINE_WITHOUT_MEMORY = Entry(
    "dpdk.engine_without_memory",
    "{subject}: no memory for the copies in flight of copy engine {name}",
    cause=SHORT,
    remedy=FREE,
)
ENGINES_REFUSED = Entry(
    "dpdk.engines_refused",
    "{subject}: {engines} copy engines for one ring: must be from 1 to {limit}",
    cause="The engines of a ring take turns, in a table of that size.",
    remedy="State fewer engines of the source in the job file.",
)
ENGINES_WITHOUT_MEMORY = Entry(
    "dpdk.engines_without_memory",
    "{subject}: no memory for {engines} copy engines",
    cause=SHORT,
    remedy=FREE,
)
ENGINE_NEEDS_HUGE_PAGES = Entry(
    "dpdk.engine_needs_huge_pages",
    "{subject}: the copy engine needs physical addresses and the ring lies in 4 KiB pages",
    cause="A slot may cross a 4 KiB page, and the next one lies elsewhere in memory.",
    remedy="`scripts/hugepages reserve N`, then start the chain again.",
)
PAGE_TABLE_WITHOUT_MEMORY = Entry(
    "dpdk.page_table_without_memory",
    "{subject}: no memory for the addresses of {pages:,} pages",
    cause=SHORT,
    remedy=FREE,
)
PAGE_WITHOUT_ADDRESS = Entry(
    "dpdk.page_without_address",
    "{subject}: page {page} of the ring has no physical address",
    cause="The kernel tells physical addresses to root alone.",
    remedy="Run the capture as root, or bind the engine with an IOMMU (`flowcheck doctor`).",
)
RING_NOT_REGISTERED = Entry(
    "dpdk.ring_not_registered",
    "{subject}: DPDK cannot register the memory of the ring: {reason}",
    also=("errno",),
    cause="DPDK refused to let the copy engine write there.",
    remedy=DOCTOR,
)
RING_NOT_MAPPED_FOR_DMA = Entry(
    "dpdk.ring_not_mapped_for_dma",
    "{subject}: the ring cannot be mapped for the copy engine: {reason}",
    also=("errno",),
    cause="The IOMMU took no more memory of this process.",
    remedy="Raise the memory that this user may lock (`ulimit -l`), then start the chain again.",
)
CAPTURE_LOOP_WITHOUT_MEMORY = Entry(
    "dpdk.capture_loop_without_memory",
    "{subject}: no memory for a capture",
    cause=SHORT,
    remedy=FREE,
)
FLIGHTS_WITHOUT_MEMORY = Entry(
    "dpdk.flights_without_memory",
    "{subject}: no memory for {frames:,} frames in flight",
    cause=SHORT,
    remedy=FREE,
)
TIMESTAMPS_WITHOUT_MEMORY = Entry(
    "dpdk.timestamps_without_memory",
    "{subject}: no memory for the times of {frames:,} frames",
    cause=SHORT,
    remedy=FREE,
)
THREAD_NOT_REGISTERED = Entry(
    "dpdk.thread_not_registered",
    "{subject}: the capture thread cannot be registered with DPDK: {reason}",
    also=("errno",),
    cause="DPDK has a fixed number of threads, one for each queue that is captured.",
    remedy="State fewer queues in the job file.",
)
SOURCE_ENDED_EARLY = Entry(
    "dpdk.source_ended_early",
    "{subject}: the file source delivered {delivered:,} of its {frames:,} frames and then no more",
    cause="The file was cut or changed while it was read.",
    remedy="Copy the capture again, and read it while nobody writes to it.",
)
COPIES_NOT_FINISHED = Entry(
    "dpdk.copies_not_finished",
    "{subject}: a copy engine did not finish {copies:,} copies within {seconds} s",
    cause="The engine hangs, or was taken away by another process.",
    remedy="Leave copy engines out of the job file, or reset the device (`flowcheck doctor`).",
)
