"""Options of `flowcheck lab` that are refused, and output folders that are in use."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# The cluster.
WITHIN = Entry(
    "lab_option.within",
    "must be {least} to {most}",
    remedy="Give a number in that range, or leave the option out to have its default.",
)
AT_LEAST_ONE = Entry(
    "lab_option.at_least_one",
    "must be 1 or more",
    remedy="Give a larger number, or leave the option out to have its default.",
)
SWITCH_KIND = Entry(
    "lab_option.switch_kind",
    "no such kind of switch",
    remedy="Give bridge or ovs, or leave the option out.",
)
MTU_CHOICES = Entry(
    "lab_option.mtu_choices",
    "not an MTU that the lab has",
    also=("first", "second"),
    remedy="Give {first} or {second} bytes.",
)
MIRRORS_ONCE = Entry(
    "lab_option.mirrors_once",
    "no port is named, or a direction of a port twice",
    remedy="Give at least one port, and each direction of a port once.",
)
MIRROR_OF_HOST = Entry(
    "lab_option.mirror_of_host",
    "must be a port of p0 to p{last}, with direction rx or tx",
    remedy="Give one of these ports, or more `--hosts` or `--nics-per-host`.",
)
MIRROR_FORM = Entry(
    "lab_option.mirror_form",
    "must be PORT:rx, PORT:tx or PORT:both, for example p0:both",
    remedy="Write it so, or leave the option out to mirror every port.",
)
ERSPAN_NEEDS_OVS = Entry(
    "lab_option.erspan_needs_ovs",
    "needs --switch ovs: a Linux bridge copies frames without a tunnel",
    cause="Only Open vSwitch mirrors through a tunnel.",
    remedy="Give `--switch ovs`, or leave the tunnel out.",
)
NICS_SHARED_OUT = Entry(
    "lab_option.nics_shared_out",
    "the {gpus} GPUs of a host cannot be shared out evenly among so many NICs",
    remedy="Give a number that divides `--gpus-per-host`.",
)
NVLS_NEEDS = Entry(
    "lab_option.nvls_needs",
    "NCCL 2.{minor} makes NVLS trees on hosts of at least {gpus} GPUs and {nics} NICs",
    remedy="Raise `--gpus-per-host` and `--nics-per-host`, or leave both NVLS options out.",
)
NVLS_IS_SIMPLE = Entry(
    "lab_option.nvls_is_simple",
    "NVLS trees have the protocol Simple alone",
    remedy="Leave `--protocol` out, or give Simple.",
)
CLUSTER_NAME = Entry(
    "lab_option.cluster_name",
    "must be 1 to 12 lower case letters and digits, a letter first",
    cause="The names of network interfaces are made from it, and Linux allows 15 characters.",
    remedy="Correct the name, or leave the option out.",
)
RING_HOSTS = Entry(
    "lab_option.ring_hosts",
    "must be at least two hosts, each once",
    remedy="Name hosts of the cluster, in the ring's order.",
)

# Runs.
KILL_NEEDS_STEPS = Entry(
    "lab_option.kill_needs_steps",
    "must be 2 or more if the trainers are killed and resume",
    remedy="Give more `--steps`, or `--no-kill`.",
)
KILL_AT = Entry(
    "lab_option.kill_at",
    "must be 1 to {most}: after the kill, the trainers resume and go on to step {steps}",
    remedy="Give an earlier step, or more `--steps`.",
)
STEP_OF_RUN = Entry(
    "lab_option.step_of_run",
    "must be 1 to {most}: the trainers make {steps} steps",
    remedy="Give an earlier step, or more `--steps`.",
)
NEEDS_MIRROR_LOSS = Entry(
    "lab_option.needs_mirror_loss",
    "needs --mirror-loss: without it no copy is dropped",
    remedy="Give `--mirror-loss`, or leave this option out.",
)
SCRIPT_ENDED = Entry(
    "lab_option.script_ended",
    "ended with {code} when it was loaded",
    remedy="Install FlowCheck again: the training script of the lab is part of it.",
)
SCRIPT_REFUSES = Entry(
    "lab_option.script_refuses",
    "{text}",
    cause="Options that the lab's command does not have go to its training script.",
    remedy="Correct them, or leave them out; `flowcheck lab train --help` lists those of the lab.",
)
"""text: of the script's own parser."""
COST_NEEDS_BRIDGE = Entry(
    "lab_option.cost_needs_bridge",
    "must be bridge: only its mirror can be switched off",
    remedy="Leave `--switch` out, or give `--switch bridge`.",
)
COST_STEPS = Entry(
    "lab_option.cost_steps",
    "must be --warm-up + 2 or more, and --warm-up must be 1 or more",
    remedy="Give more `--steps`, or fewer `--warm-up`.",
)
CPUS_NEEDED = Entry(
    "lab_option.cpus_needed",
    "needs CPU {trainers} for trainers and CPU {others} for all else: allow both (taskset)",
    cause="Trainers and the rest would share processors, and the times would say nothing.",
    remedy="Run it on a machine with enough processors, all of them allowed.",
)

# Options that a trainer reads from its environment.
WHOLE_NUMBER = Entry(
    "lab_option.whole_number",
    "must be a whole number from {least} to {most}",
    remedy="Correct the value, or leave it out to have its default.",
)
PROBABILITY = Entry(
    "lab_option.probability",
    "must be a probability from 0 to less than 1",
    remedy="Correct the value, or leave it out to have its default.",
)
NCCL_VERSION = Entry(
    "lab_option.nccl_version",
    "must be 2.{least} to 2.{most}",
    remedy="Correct the value, or leave it out to have its default.",
)
NCCL_PROTOCOL = Entry(
    "lab_option.nccl_protocol",
    "must be LL, LL128 or Simple",
    remedy="Correct the value, or leave it out to have its default.",
)
NCCL_ALGORITHM = Entry(
    "lab_option.nccl_algorithm",
    "must be Ring, Tree or NVLSTree",
    remedy="Correct the value, or leave it out to have its default.",
)

# Where it writes.
OUT_NOT_A_FOLDER = Entry(
    "lab_option.out_not_a_folder",
    "is not a folder",
    remedy="Name another folder.",
)
OUT_NOT_PLAIN = Entry(
    "lab_option.out_not_plain",
    "{path} is a link, a file or a mount point",
    remedy="Name another folder.",
)
OUT_NOT_OF_LAB = Entry(
    "lab_option.out_not_of_lab",
    "{path} exists, and no run of the lab made it",
    remedy="Name another folder, or move it away.",
)
OUT_HOLDS_RUN = Entry(
    "lab_option.out_holds_run",
    "{path} holds an earlier run",
    remedy="Name another folder, or give `--force` to replace it.",
)
OUT_IS_WORKING_FOLDER = Entry(
    "lab_option.out_is_working_folder",
    "{path} holds the current working directory",
    remedy="`cd` out of it, or name another folder.",
)
OUT_HAS_LIVE_RUN = Entry(
    "lab_option.out_has_live_run",
    "process {pid} of a run works in {path}",
    remedy="Name another folder, or end that run.",
)
OUT_FILE_EXISTS = Entry(
    "lab_option.out_file_exists",
    "{path} exists already",
    remedy="Name another file, or give `--force` to replace it.",
)
OUT_NOT_REPLACEABLE = Entry(
    "lab_option.out_not_replaceable",
    "{path} exists already and is not a plain file",
    remedy="Name another file.",
)
