"""`flowcheck fleet check`, `up`, `status`, `down` and `restore`: chains on several machines."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_CHAINS = Entry(
    "fleet.no_chains",
    "no chain is stated",
    remedy="Give each mirror port's chain a `[[chain]]` table with `job` and `node`.",
)
NO_ADDRESS = Entry(
    "fleet.no_address",
    "is not stated for node {node}, and the other machines reach it by that",
    remedy='Give its `[[node]]` table `address = "10.0.0.5"`.',
)
NOT_A_NAME = Entry(
    "fleet.not_a_name",
    "must have 1 to 40 letters, digits, `_` and `-`, and begin with a letter or digit",
    remedy="It becomes part of paths and of a resource of Ray: choose such a name.",
)
UNKNOWN_NODE = Entry(
    "fleet.unknown_node",
    "no `[[node]]` table has this name; those stated: {nodes}",
    remedy="Name the machine that has the chain's monitor port.",
)
CHAIN_TWICE = Entry(
    "fleet.chain_twice",
    "two chains have this name",
    remedy="Give one of them a `name`; without one it is that of the job file.",
)
PLACE_TWICE = Entry(
    "fleet.place_twice",
    "its checkpoints go to {place}, where chain {of} has its own",
    remedy="Give each job file a `target`, `targets` and `checkpoint` of its own.",
)
ADDRESS_TWICE = Entry(
    "fleet.address_twice",
    "node {other} has the same `address` and `port`",
    remedy="Give each node an address of its own, or a `port` of its own.",
)
FLEET_WRITES = Entry(
    "fleet.writes_table",
    "{file} states `[{table}]`, and in the job file of a chain the fleet writes that table",
    remedy="Take it out of {file}.",
)
NOT_ONE_JOB = Entry(
    "fleet.not_one_job",
    "several jobs on the same ports cannot be copied to other machines",
    remedy="State `replication_factor = 1` in `[redundancy]`, or a chain for each job.",
)
CODE_NOT_RUN = Entry(
    "fleet.code_not_run",
    "an erasure code is planned only: no chain writes its blocks",
    remedy="State `replication_factor` in place of `data_blocks` and `parity_blocks`.",
)
CAPTURES_NOTHING = Entry(
    "fleet.captures_nothing",
    "the job file names no `[[source]]`: such a chain has no port to be started at",
    remedy="Name its mirror port as `[[source]]`; copies are started by the fleet itself.",
)
NO_TEXT_FOR = Entry(
    "fleet.no_text_for",
    "has a value of a kind that no job file needs: {kind}",
    remedy="State it as text or as a number.",
)
LOST_TOGETHER_WITH = Entry(
    "fleet.lost_together",
    "chain {chain} has no copy: what node {node} has is lost with it",
)
STATE_MISSING = Entry(
    "fleet.state_missing",
    "there is no state of the fleet",
    remedy="Start the fleet: `flowcheck fleet up FILE.toml`, on a machine of its Ray cluster.",
)
STATE_DAMAGED = Entry(
    "fleet.state_damaged",
    "is no state of a fleet: {error}",
    cause="The file is damaged, or another release wrote it.",
    remedy="Remove it, and start the fleet again: `flowcheck fleet up FILE.toml`",
)
CHAIN_ENDED = Entry(
    "fleet.chain_ended",
    "it ended, and is not started again: {why}",
    remedy="Start the fleet again if it is to run: `flowcheck fleet up FILE.toml`",
)
START_REFUSED = Entry(
    "fleet.start_refused",
    "it does not start: {why} (all of it is in {log})",
    remedy="Mend that; it is tried again, after a minute at most.",
)
START_PRINTED = Entry("fleet.start_printed", "{line}")
START_SLOW = Entry(
    "fleet.start_slow",
    "it was started {seconds:.0f} s ago and has no run directory yet (see {log})",
    remedy="Wait; if that goes on, its log tells why.",
)
HELD_BY_ANOTHER = Entry(
    "fleet.held_by_another",
    "it is not started: something answers at {url}, and the run directory {run} is gone",
    cause="The machine's folder of the fleet was removed while this chain ran; it goes on, and a "
    "second one would write to the same places.",
    remedy="Find it with `pgrep -af {run!q}`, and end it by its number; then this one is started.",
)
STOPPED = Entry("fleet.stopped", "the fleet was stopped (`flowcheck fleet down`)")
KEEPER_PATH = Entry(
    "fleet.keeper_path",
    "a keeper has `GET /node`, `GET /fleet` and `POST /stop`",
    remedy="Ask by `flowcheck fleet status FILE.toml`.",
)
STOP_REQUEST = Entry(
    "fleet.stop_request",
    "such a request to stop is not taken",
    remedy="Stop by `flowcheck fleet down FILE.toml`.",
)
KEEPER_SILENT = Entry(
    "fleet.keeper_silent",
    "node {node} did not answer within {seconds:.0f} s",
    cause="The machine, or its keeper, hangs or is overloaded, or its packets are lost.",
    remedy="Look at the machine; its chains may run on, and their copies are asked for themselves.",
)
KEEPER_GONE = Entry(
    "fleet.keeper_gone",
    "node {node} does not answer at {url}: {error}",
    cause="The machine or its link is down, or the fleet was not started there.",
    remedy="Look at the machine. If it is there, `flowcheck fleet up FILE.toml` starts its keeper.",
)
KEEPER_REFUSED = Entry(
    "fleet.keeper_refused",
    "node {node} refused at {url}, with status {status}: {error}",
    cause="With status 401 or 403 the token is another one. With 503 the machine has no state of "
    "the fleet: its folder was removed.",
    remedy="State the `token_file` of the fleet, with the token that its machines have; with 503 "
    "give it the state again: `flowcheck fleet up FILE.toml`.",
)
KEEPER_ANSWER = Entry(
    "fleet.keeper_answer",
    "what answers for node {node} at {url} is not its keeper: {error}",
    cause="Another program has that port, or another release runs there.",
    remedy="Use one release on all machines, and give the fleet a `port` of its own.",
)
KEEPER_RELEASE = Entry(
    "fleet.keeper_release",
    "node {node} runs FlowCheck {release}, and this is {own}: its answer is not understood",
    remedy="Use one release on all machines.",
)
KEEPER_RUNS = Entry(
    "fleet.keeper_runs",
    "the keeper of node {node} runs already",
    remedy="Leave it; one is enough.",
)
NO_KEEPER = Entry(
    "fleet.no_keeper",
    "no machine of the fleet answers: {why}",
    remedy="Start the fleet, or look at its machines.",
)
NO_COMMON_STEP = Entry(
    "fleet.no_common_step",
    "no step is exact in a running chain of each shard",
    remedy="Wait for steps; what is lost comes back from a checkpoint of the trainer.",
)
LIVES_DIFFER = Entry(
    "fleet.lives_differ",
    "the shards have no step that is of one life of the training job: {lives}",
    cause="Training began again, and not all chains and copies have followed it to that life yet, "
    "or some count lives from another start, as they joined the job midway.",
    remedy="Wait until all follow, or give the chains of all shards the same checkpoint of the "
    "trainer as their base. One shard is given by `--shard CHAIN`. Only who knows that all are "
    "of one run of the job joins them by `--despite-lives`.",
)
LIVES_UNKNOWN = Entry(
    "fleet.lives_unknown",
    "nobody knows of which life of the training job the shards' steps are: {lives}",
    cause="The copies were brought up by an earlier release, or the job was just starting again.",
    remedy="Ask again when a step has passed. Only who knows that the states are of one run of the "
    "job joins them by `--despite-lives`.",
)
STATES_OF_STEP_DIFFER = Entry(
    "fleet.states_of_step_differ",
    "nodes {nodes} have different states of {chain} at step {step}: nothing says which is right",
    cause="One of them has faulty memory or other settings, or follows another run of the job.",
    remedy="Audit each of them, at its machine, by a checkpoint of the trainer of that step.",
)
STATE_CHANGED = Entry(
    "fleet.state_changed",
    "{chain} does not give the state of step {step} that it told of: {why}",
    cause="The training job began again, or the step went out of memory meanwhile, or the chain "
    "ended.",
    remedy="Ask again.",
)
DRILL_DIFFERS = Entry(
    "fleet.drill_differs",
    "{chain} gave tensors of step {step} that differ from those of another chain",
    cause="One of them has faulty memory or a faulty disk: their digests told the same.",
    remedy="Audit each of them, at its machine, by a checkpoint of the trainer of that step.",
)
DRILL_SHARD_LOST = Entry(
    "fleet.drill_shard_lost",
    "nobody gave the shard of {chain}",
    remedy="Look at its machine, and at those of its copies.",
)
DRILL_AT_THIS_RATE = Entry(
    "fleet.drill_rate",
    "a restore is as fast as this drill was, and nodes are lost independently of their domains",
)
STATE_IS_ANOTHER = Entry("fleet.state_is_another", "it has another one there")
SERVER_SILENT = Entry("fleet.server_silent", "it did not answer within {seconds:.0f} s")
LIVES_JOINED = Entry(
    "fleet.lives_joined",
    "steps were put together without a look at the lives of the training job, as `--despite-lives` "
    "asks",
)
STEP_ELSEWHERE = Entry(
    "fleet.step_elsewhere",
    "chain {chain} does not run, or does not answer; its newest step that is exact elsewhere is "
    "{step}, on node {node}",
    remedy="`flowcheck fleet restore FILE.toml --format torch --out FILE` gives it.",
)
SHARD_LOST = Entry(
    "fleet.shard_lost",
    "chain {chain} does not run, or does not answer, and no copy that answers has an exact step of "
    "it",
    remedy="Look at its machine, and at those of its copies: `flowcheck fleet up FILE.toml` starts "
    "keepers that have ended.",
)
NODE_NEWER = Entry(
    "fleet.node_behind",
    "node {node} has the state of generation {own}, and {newest} is the newest",
    cause="It was away, or Ray does not reach it.",
    remedy="Bring its raylet back, and run `flowcheck fleet up FILE.toml` again.",
)
NO_RAY = Entry(
    "fleet.no_ray",
    "Ray is not installed here: {error}",
    remedy="Install it on each machine: `pip install ray`",
)
RAY_FAILED = Entry(
    "fleet.ray_failed",
    "Ray refused: {error}",
    cause="No cluster runs at that address, or it is of another release of Ray or Python.",
    remedy="Start one as `flowcheck/fleet/README.md` says, and state its `--address`.",
)
RAY_SILENT = Entry(
    "fleet.ray_silent",
    "Ray did not answer within {seconds:.0f} s",
    cause="Its head is gone or overloaded, or a machine that an actor belongs to is not there.",
    remedy="Look at Ray's head. Chains that run need no Ray, nor does the fleet: look at it with "
    "`flowcheck fleet status FILE.toml`.",
)
NODE_NOT_THERE = Entry(
    "fleet.node_not_there",
    "no machine of the Ray cluster is node {node}, which has the resource {resource}",
    cause="Its raylet is down, or was started without that resource.",
    remedy="Start it there: `ray start --address HEAD:6379 --resources '{{\"{resource}\": 1}}'`",
)
NO_NODE_THERE = Entry("fleet.no_node_there", "no machine of the fleet is there: {why}")
SAME_MACHINE = Entry(
    "fleet.same_machine",
    "nodes {node} and {other} are one machine of the Ray cluster: copies on them would be lost "
    "together",
    remedy="Give each machine one of these resources.",
)
TWO_MACHINES = Entry(
    "fleet.two_machines",
    "{count} machines of the Ray cluster have the resource {resource}",
    remedy="Give it to the one that has the monitor port.",
)
GENERATION_OUTBID = Entry(
    "fleet.outbid",
    "its machine has generation {known} of the fleet, and this is {own}",
    cause="Somebody else started or stopped the fleet at the same time.",
    remedy="Agree who does, and run `flowcheck fleet up FILE.toml` again.",
)
RUNS_EARLIER = Entry(
    "fleet.runs_earlier",
    "chain {chain} runs on with the job file of an earlier start of the fleet",
    remedy="Between two runs of the training job: `flowcheck fleet down FILE.toml`, then "
    "`flowcheck fleet up FILE.toml`",
)
STEP_NOWHERE = Entry(
    "fleet.step_nowhere",
    "no running chain of {chain} has step {step} as an exact one; those that answer have {steps}",
    remedy="Leave `--step` out: the newest step that is exact in each shard is taken.",
)
UNKNOWN_SHARD = Entry(
    "fleet.unknown_shard",
    "the fleet has no such chain that captures; it has {chains}",
    remedy="Name one of them.",
)
TEMPLATE_OF_ONE = Entry(
    "fleet.template_of_one",
    "a template is of one shard, and the fleet has {count}",
    remedy="State `--format`, or one shard: `--shard NAME`.",
)
STARTS_SOON = Entry(
    "fleet.starts_soon", "it ended, or is being started, and is looked at again soon"
)
STATE_HELD = Entry(
    "fleet.state_held",
    "another process holds {file}",
    cause="It hangs, or was stopped (SIGSTOP).",
    remedy="Find it by `fuser`, and let it go on or end it.",
)
NEWER_KNOWN = Entry(
    "fleet.newer_known",
    "this machine has generation {own} of the fleet, and another one has {newest}: nothing is "
    "started here",
    cause="The machine was away when the fleet was started again, or Ray does not reach it.",
    remedy="Bring its raylet back, and run `flowcheck fleet up FILE.toml` again.",
)
STATES_DIFFER = Entry(
    "fleet.states_differ",
    "nodes {nodes} have different states of generation {generation}",
    cause="The fleet was started twice at once, by different files.",
    remedy="Agree on one file, and run `flowcheck fleet up FILE.toml` again.",
)
CHAIN_ELSEWHERE = Entry(
    "fleet.chain_elsewhere",
    "chain {chain} runs on node {node}, where the file has none of that name",
    cause="It was moved, renamed or taken out of the file.",
    remedy="Stop the fleet first: `flowcheck fleet down FILE`, with the `fleet-state.json` of a "
    "machine or the earlier file.",
)
RAY_OPEN = Entry(
    "fleet.ray_open",
    "the Ray cluster asks nobody for a token: who reaches its ports runs code on all its machines",
    remedy="Start it with `RAY_AUTH_MODE=token` and a token, or state `--open-ray`.",
)
ONE_LIFE = Entry(
    "fleet.one_life",
    "the shards' steps of one number are of one run of the training job",
)
STOPPED_HERE = Entry(
    "fleet.stopped_here",
    "the fleet was stopped, as of generation {generation}, as node {node} on this machine has it",
)
WANTED_HERE = Entry(
    "fleet.wanted_here",
    "the fleet is to run, as of generation {generation}, as node {node} on this machine has it",
    remedy="Start it again: `flowcheck fleet up FILE.toml`. Chains that run go on.",
)
SAVED_HERE = Entry(
    "fleet.saved_here",
    "chain {chain} of node {node} has saved step {step}, on this machine",
    remedy="`flowcheck restore{run!o} --format torch --out FILE` gives it.",
    also=("run",),
)
OUT_EXISTS = Entry(
    "fleet.out_exists",
    "is there already, and several shards get a folder of their own",
    remedy="Name a folder that is not there yet.",
)
