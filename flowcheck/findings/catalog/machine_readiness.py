"""`flowcheck doctor`: what each check found on this machine, and what to do."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# DPDK and its drivers.
DPDK_THERE = Entry("doctor.dpdk_there", "{version}")
DPDK_MISSING = Entry("doctor.dpdk_missing", "flowcheck._dpdk is not there: {error}")
INSTALL_DPDK = Entry(
    "doctor.install_dpdk",
    "capture files work without it; for a NIC install libdpdk-dev (22.11 to 24.11), or point "
    "PKG_CONFIG_PATH at a DPDK build, and build again",
)
DPDK_DRIVERS = Entry("doctor.dpdk_drivers", "{count} ({pci_ids} PCI IDs): {drivers}")
NO_DPDK_DRIVERS = Entry("doctor.no_dpdk_drivers", "none")
INSTALL_NIC_DRIVERS = Entry(
    "doctor.install_nic_drivers",
    "install librte-net-* (or DPDK's drivers) to capture from a NIC",
)

# Devices: `facts` says what each is bound to, its NUMA node and DPDK's drivers for it.
DEVICE = Entry("doctor.device", "{vendor:04x}:{product:04x}, {facts}", between=", ")
BOUND_TO = Entry("doctor.bound_to", "bound to {driver}")
BOUND_TO_NOTHING = Entry("doctor.bound_to_nothing", "bound to nothing")
ON_NUMA_NODE = Entry("doctor.on_numa_node", "NUMA node {node}")
DRIVEN_BY = Entry("doctor.driven_by", "driven by {drivers}")
DEVICE_NEEDED_HERE = Entry(
    "doctor.device_needed_here",
    "{device}; {reasons}: this machine needs it, it is no capture port",
    between=", ",
)
DEVICE_UP = Entry("doctor.device_up", "{device}; {interface} is up, without an address")
USE_BY_NAME = Entry(
    "doctor.use_by_name", "no installed DPDK driver knows it: use it by interface name (af_packet)"
)
BIND_DEVICE = Entry(
    "doctor.bind_device",
    "to capture through it: `{command}` (the kernel loses the interface), or use it by interface "
    "name",
)
BIND_DEVICE_UP = Entry(
    "doctor.bind_device_up",
    "if nothing but the mirror uses {interface}: capture by that name, or `ip link set {interface} "
    "down` and `{command}` (the kernel loses it)",
)
ALL_NICS_NEEDED = Entry("doctor.all_nics_needed", "this machine needs every one it has")
ANOTHER_PORT = Entry(
    "doctor.another_port", "the mirror needs a port nothing else uses; or capture from a file"
)
NO_PCI_NIC = Entry("doctor.no_pci_nic", "no PCI network device")
CAPTURE_WITHOUT_PCI = Entry(
    "doctor.capture_without_pci", "capture by interface name or from a file"
)
VFIO_LOADED = Entry("doctor.vfio_loaded", "{groups} IOMMU groups, vfio-pci loaded")
VFIO_NOT_LOADED = Entry("doctor.vfio_not_loaded", "{groups} IOMMU groups, vfio-pci not loaded")
SWITCH_IOMMU_ON = Entry(
    "doctor.switch_iommu_on",
    "{devices} would need it: switch the IOMMU on (intel_iommu=on or amd_iommu=on) and modprobe "
    "vfio-pci",
)

# Memory.
HUGE_PAGES = Entry("doctor.huge_pages", "{pages} pages of 2 MiB, {free} free, {needed} needed")
RESERVE_HUGE_PAGES = Entry(
    "doctor.reserve_huge_pages", "correct but slower without: `scripts/hugepages reserve {pages}`"
)
HUGETLBFS_MOUNTED = Entry("doctor.hugetlbfs_mounted", "mounted at {folders}")
HUGETLBFS_NOT_MOUNTED = Entry("doctor.hugetlbfs_not_mounted", "not mounted: rings go to /dev/shm")
MOUNT_HUGETLBFS = Entry("doctor.mount_hugetlbfs", "`scripts/hugepages reserve N` mounts it")
SHM_PAGES_LARGE = Entry("doctor.shm_pages_large", "2 MiB as the kernel finds them")
SHM_PAGES_BESIDE_HUGETLBFS = Entry("doctor.shm_pages_beside_hugetlbfs", "4 KiB; hugetlbfs has room")
SHM_PAGES_SMALL = Entry("doctor.shm_pages_small", "4 KiB")
ENLARGE_SHM_PAGES = Entry(
    "doctor.enlarge_shm_pages", "replica, gradients and rings are slower with them: `{command}`"
)
SHM_UNUSABLE = Entry("doctor.shm_unusable", "not usable: {error}")
MOUNT_TMPFS = Entry("doctor.mount_tmpfs", "mount a tmpfs there")
SHM_ROOM = Entry(
    "doctor.shm_room",
    "{free_mib} MiB free, {needed_mib} MiB needed where huge pages are missing",
)
ENLARGE_SHM = Entry("doctor.enlarge_shm", "`mount -o remount,size=N /dev/shm`, or huge pages")
MEMORY_ROOM = Entry("doctor.memory_room", "{available_mib} MiB available, {needed_mib} MiB needed")
NEED_LESS_MEMORY = Entry(
    "doctor.need_less_memory", "a smaller ring or staging, or a machine with more"
)

# Processor and rights.
CPU_FLAGS = Entry("doctor.cpu_flags", "{flags}", between=", ")
CPU_HAS = Entry("doctor.cpu_has", "{flag} yes")
CPU_LACKS = Entry("doctor.cpu_lacks", "{flag} no")
CPU_SLOWER = Entry(
    "doctor.cpu_slower", "correct but slower: copies and CRCs take their plain twins"
)
CORES_ONE_NODE = Entry("doctor.cores_one_node", "{cores} cores, {nodes} NUMA node")
CORES = Entry("doctor.cores", "{cores} cores, {nodes} NUMA nodes")
KEEP_IDLE = Entry("doctor.keep_idle", "four stages share them: keep source.idle_us above 0")
PACKET_SOCKETS = Entry("doctor.packet_sockets", "may open packet sockets")
RUN_AS_ROOT = Entry("doctor.run_as_root", "run as root to capture; capture files need no rights")
MAY_RUN_FIRST = Entry("doctor.may_run_first", "capture may run before other work (SCHED_RR)")
MAY_NOT_RUN_FIRST = Entry(
    "doctor.may_not_run_first",
    "capture may not take real-time priority: frames are lost while other work runs",
)
ALLOW_REAL_TIME = Entry(
    "doctor.allow_real_time",
    "run as root, with CAP_SYS_NICE or with LimitRTPRIO=1 (`ulimit -r 1`); or give it a core of "
    "its own and source.idle_us = 0",
)

# The run directory.
RUN_FOLDER_ON = Entry("doctor.run_folder_on", "{folder} on {file_system}")
RUN_FOLDER_ANYWHERE = Entry("doctor.run_folder_anywhere", "{folder} on an unknown file system")
RUN_FOLDER_NOT_WRITABLE = Entry("doctor.run_folder_not_writable", "{place}, not writable")
SHORTER_RUN_FOLDER = Entry(
    "doctor.shorter_run_folder", "socket paths may have {bytes} bytes: choose a shorter folder"
)
ANOTHER_RUN_FOLDER = Entry("doctor.another_run_folder", "choose another, or be root")
LOCAL_RUN_FOLDER = Entry("doctor.local_run_folder", "sockets and logs want a local file system")
