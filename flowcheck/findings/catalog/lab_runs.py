"""`flowcheck lab`: why a cluster is not made, and why a run ends early."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OVS_LOG = (
    "Read its log in `/var/log/openvswitch`; check that Open vSwitch is installed and its "
    "kernel module loaded (`modprobe openvswitch`)."
)

# Clusters.
NEEDS_ROOT = Entry(
    "lab.needs_root",
    "the lab makes network namespaces, which needs root",
    remedy="Run it with sudo.",
)
CLUSTER_EXISTS = Entry(
    "lab.cluster_exists",
    "cluster {name} is up already",
    remedy="Remove it: `flowcheck lab down --name {name!q}`.",
)
CLUSTER_LEFT = Entry(
    "lab.cluster_left",
    "cluster {name} was left by a crash",
    remedy="Remove it: `flowcheck lab down --name {name!q}`.",
)
CLUSTER_IN_USE = Entry(
    "lab.cluster_in_use",
    "cluster {name} is used by a run that is not over ({owner})",
    remedy="Wait for its end, end it, or give this run a `--name` and an `--out` of its own.",
)
LAB_LOCKED = Entry(
    "lab.locked",
    "another `flowcheck lab` has held {folder} for {limit_s} s",
    remedy="Wait until it has set up or removed its cluster, then run the command again.",
)
NOT_A_CLUSTER_STATE = Entry(
    "lab.not_a_cluster_state",
    "{path} does not hold the state of a cluster: {error}",
    cause="The file is damaged, or another release of FlowCheck wrote it.",
    remedy="`flowcheck lab down` removes the cluster with its state; then make it anew.",
)
NOT_A_SYSCTL_RECORD = Entry(
    "lab.not_a_sysctl_record",
    "{path} is not a record of FlowCheck's: {error}",
    cause="The file is damaged, or another program wrote it.",
    remedy="Set the values by hand (`sysctl net.core`), then remove the file.",
)
SYSCTL_REFUSED = Entry(
    "lab.sysctl_refused",
    "cannot set {key} = {value}: {error}",
    cause="The kernel does not take the value, as in a container.",
    remedy="Run the lab as root, outside of a container.",
)
KERNEL_REFUSED = Entry(
    "lab.kernel_refused",
    "cannot make {what}: {error}; it needs {feature}",
    cause="The kernel lacks a feature, or this is a container without the right.",
    remedy="Run the lab as root, outside of a container, on a kernel with that feature.",
)
PROCESSES_KEEP_STARTING = Entry(
    "lab.processes_keep_starting",
    "processes in {namespaces} keep starting new ones",
    cause="Something in the cluster starts processes again and again.",
    remedy="End that program, then `flowcheck lab down` again.",
)
NOT_KILLED = Entry(
    "lab.not_killed",
    "SIGKILL did not end {processes}",
    cause="The processes hang in the kernel, as in a read of a dead file system.",
    remedy="See `ps -o pid,wchan,cmd`; a restart of this machine ends them.",
)

# Open vSwitch.
OVS_NOT_INSTALLED = Entry(
    "lab.ovs_not_installed",
    "Open vSwitch is not installed ({programs} missing)",
    remedy="`apt-get install openvswitch-switch`, or use `--switch bridge`.",
)
OVS_NO_SCHEMA = Entry(
    "lab.ovs_no_schema",
    "Open vSwitch's database schema is missing: {path}",
    cause="Open vSwitch is not installed, or not where it is expected.",
    remedy="Install it (`apt install openvswitch-switch`), or use `--switch bridge`.",
)
OVS_FAILED = Entry(
    "lab.ovs_failed",
    "{program} failed with {code}: {said}",
    cause="Open vSwitch refused a command.",
    remedy=_OVS_LOG,
)
OVS_ENDED = Entry(
    "lab.ovs_ended",
    "{program} ended right after its start",
    also=("log",),
    remedy="{log} has its reason; or use `--switch bridge`.",
)
OVS_PORT_NOT_OPEN = Entry(
    "lab.ovs_port_not_open",
    "Open vSwitch cannot open {port}: {error}",
    cause="The daemon could not use the interface.",
    remedy=_OVS_LOG,
)

# Loss at the monitor port.
MIRROR_LOSS_REFUSED = Entry(
    "lab.mirror_loss_refused",
    "--mirror-loss: the kernel refuses {what}: {error}",
    cause="The kernel lacks BPF or tc's BPF classifier, or this is a container without the right.",
    remedy="Run it as root, outside of a container, on a kernel with CONFIG_BPF_SYSCALL, "
    "CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF; or leave `--mirror-loss` out.",
)

# Runs.
OPTION_DECIDED = Entry(
    "lab.option_decided",
    "--{option} after `--`: lab {verb} decides it; {instead}",
    remedy="Leave it out after `--`.",
)
TRAINER_ENDED = Entry(
    "lab.trainer_ended",
    "a trainer ended with {code}:\n{log}",
    cause="The training script failed.",
    remedy="The last lines of its log are in the message: correct the script or its options.",
)
TRAINERS_HANG = Entry(
    "lab.trainers_hang",
    "{what}: no new step for {seconds} s after {step}, {starved_s} s of them spent waiting for a "
    "processor (load {load} on {processors} processors). Where the ranks stood:\n{stacks}",
    cause="Trainers wait for each other, or this machine has too few processors for all of them.",
    remedy="Use fewer ranks, or a machine with more cores.",
)
SERVICES_NOT_UP = Entry(
    "lab.services_not_up",
    "the services did not start within {limit_s} s ({log}):\n{said}",
    cause="FlowCheck's own chain in the lab did not start in time: the machine is busy, or the "
    "chain failed.",
    remedy="Read the log that the sentence names; fewer ranks take less of this machine.",
)
SERVICES_ENDED = Entry(
    "lab.services_ended",
    "the services ended with {code} ({log}):\n{said}",
    cause="FlowCheck's own chain in the lab failed.",
    remedy="Read the log that the sentence names.",
)
NO_BASE = Entry("lab.no_base", "no checkpoint could be given as base: {why}")
NOTHING_LOGGED = Entry(
    "lab.nothing_logged",
    "nothing was logged",
    remedy="Train more steps (`--steps`), or read the log of the services.",
)
TRAINERS_WROTE_TOO_FEW = Entry(
    "lab.trainers_wrote_too_few",
    "the trainers ended too soon: FlowCheck was up behind step {step} of {steps}, and fewer than "
    "two of their files (one every {every} steps) came after it",
    cause="A base is proved by the file after it.",
    remedy="Give them more `--steps`, or a model whose steps take longer.",
)

# Recordings and measurements.
FRAMES_DROPPED = Entry(
    "lab.frames_dropped",
    "{frames} frames were dropped between {interface} and {path}, so the recording is incomplete",
    remedy="Try a smaller or slower job, or a machine with more cores.",
)
ACCOUNTS_DIFFER = Entry(
    "lab.accounts_differ",
    "the ranks' accounts of collective {number} differ: {accounts}",
    cause="Ranks recorded different results of one collective: the recording is wrong.",
    remedy="Record it again; `flowcheck lab down` first removes what is left.",
)
TOO_FEW_STEPS = Entry(
    "lab.too_few_steps",
    "too few steps were seen to measure CPU time",
    remedy="Give it more `--steps`.",
)
ROUND_WITHOUT_BASE = Entry(
    "lab.round_without_base",
    "{case}: a round does not have the case it is compared with",
    cause="A round of the measurement was not finished.",
    remedy="Measure again.",
)
MIRRORED_UNEXPECTEDLY = Entry(
    "lab.mirrored_unexpectedly",
    "{case}: {frames} frames were mirrored, which contradicts the case",
    cause="A cluster of an earlier measurement still mirrors.",
    remedy="`flowcheck lab down`, then measure again.",
)
NO_MATPLOTLIB = Entry(
    "lab.no_matplotlib",
    "--plot needs matplotlib, which is not installed",
    remedy="`pip install 'matplotlib>=3.8,<4'`, or leave `--plot` out.",
)

# What a cluster lacks, in `flowcheck lab status`.
CLUSTER_UNFINISHED = Entry("lab.cluster_unfinished", "it was never finished")
NAMESPACE_GONE = Entry("lab.namespace_gone", "namespace {namespace} is gone")
PROCESS_ENDED = Entry("lab.process_ended", "{what} ({pid}) has ended")
PORT_GONE = Entry("lab.port_gone", "port {port} is gone")
PORT_DOWN = Entry("lab.port_down", "port {port} is down")
MIRROR_GONE = Entry("lab.mirror_gone", "mirror {mirror} is gone")
