"""Findings about copies of a replica on other machines (`[copies]`, `[gradients] chains`)."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_CHANGE_RING = Entry(
    "copies.no_ring",
    "the changes of the replica are not there yet",
    remedy="Wait until the job is learned.",
)
COPY_ANSWER = Entry(
    "copies.answer",
    "{what} came from the other side",
    cause="The other side is no chain with `[copies]`, is of another release, or bytes were "
    "changed on the way.",
    remedy="Name the address of a chain with `[copies]`, and use one release on both machines.",
)
COPIES_AT = Entry("copies.at", "copies of the replica may follow at {url}")
COPIES_NOT_SHARDED = Entry(
    "copies.not_sharded",
    "parameters are followed as they are gathered: such a replica cannot be copied",
    remedy="Run another chain on the same mirrored ports.",
)
COPIES_NO_MEMORY = Entry(
    "copies.no_memory",
    "copies get no changes, as {file} cannot have {size_bytes:,} bytes: {error}",
    remedy="Lower `keep_bytes` of `[replica]`, or give the chain more shared memory.",
)
COPIES_NOTHING_YET = Entry(
    "copies.nothing_yet",
    "the chain has no state that can be copied yet: {why}",
    remedy="Wait; the copy asks again.",
)
NO_STATE_YET = Entry(
    "copies.no_state_yet",
    "no job is learned, or its state is not known",
    remedy="Wait until it is.",
)
COPY_PATH = Entry(
    "copies.path",
    "a chain has /training, /next and /state here",
    remedy="Name the address alone in `[gradients] chains`.",
)
COPY_FOLLOWS = Entry(
    "copies.follows", "the replica is a copy of {source}, in epoch {epoch}, from step {step} on"
)
COPY_BROUGHT = Entry(
    "copies.brought",
    "the replica was brought to step {step} by a whole state of {bytes:,} bytes from {source}",
)
COPY_WENT_BACK = Entry(
    "copies.went_back", "{source} went back: the copy returned from step {newest} to step {step}"
)
COPY_DIFFERS = Entry(
    "copies.differs",
    "the copy differs from {source} and stays at step {step}, the last that is equal: {why}",
    cause="The optimizer is not stated as it is there, or torch computes otherwise here: another "
    "release, or a CPU for which it takes other kernels.",
    remedy="State `[optimizer]` and `[model]` as the other chain does, use a machine and a torch "
    "like that one's, and start this chain again.",
)
COPY_DAMAGED = Entry(
    "copies.damaged",
    "the bytes of step {step} in this copy's memory are not those that were committed: it takes a "
    "whole state of {source}",
    cause="The replica's file was changed, or the machine's memory is faulty.",
    remedy="Test the memory of this machine.",
)
COPY_DIFFERED = Entry(
    "copies.differed",
    "a step led to another state here before the updater was started again",
    remedy="State `[optimizer]` and `[model]` as the other chain does, and start this one again.",
)
COPY_OTHER_MODEL = Entry(
    "copies.other_model",
    "the state of {source} has another layout than the replica of this job file",
    cause="The model, its names or types, or the optimizer are stated otherwise there.",
    remedy="State `[optimizer]` and `[model]` as the other chain does.",
)
COPY_BLOCK = Entry(
    "copies.block",
    "block {block} of {bytes:,} bytes had another digest when it came from {source}; it is "
    "fetched anew",
)
COPY_BLOCKS = Entry(
    "copies.blocks",
    "block {block} had another digest {tries} times",
    cause="The network changes bytes, or the memory of one of the machines is faulty.",
    remedy="Check the link and the memory of both machines.",
)
COPY_STATE_DIGEST = Entry(
    "copies.state_digest",
    "the state of step {step} has not the digest that its chain states",
    cause="The state was overwritten while it was sent, or its memory is faulty.",
    remedy="Wait; it is fetched anew. Raise `[replica] keep_bytes` of that chain if it goes on.",
)
COPY_EPOCH = Entry(
    "copies.epoch",
    "{source} is refused: it is of epoch {epoch}, and the copy has seen epoch {known}",
    cause="That chain was paused, cut off or replaced, and came back.",
    remedy="End it, or raise `[copies] epoch` there if it is to be followed.",
)
COPY_EPOCH_TWICE = Entry(
    "copies.epoch_twice",
    "{source} is refused: it states epoch {epoch}, and so did another chain that was followed",
    cause="That chain runs on another machine or in another folder, and states no higher epoch.",
    remedy="Raise `[copies] epoch` of the one that is to be followed.",
)
COPY_EPOCH_FILE = Entry(
    "copies.epoch_file",
    "{file} does not tell which chains this copy may follow: {error}",
    cause="The file is damaged, or another release wrote it.",
    remedy="Remove it, if no earlier chain of the job can come back.",
)
COPY_TAINTED = Entry(
    "copies.tainted",
    "{source} has only a state with tainted elements at step {step}: the copy waits until it is "
    "healed",
    remedy="Heal it there with a checkpoint of the trainer.",
)
COPY_AHEAD = Entry(
    "copies.ahead",
    "{source} began again and is at step {step}: the copy keeps its step {own} until that is "
    "reached",
    remedy="If the earlier step is right, start the copy's chain again.",
)
COPY_SOURCE_GONE = Entry(
    "copies.source_gone",
    "{source} has not answered for {silent} s ({why}); the copy is at step {step}, {lag} steps "
    "behind the newest that was known before",
    cause="The machine, its chain or the link is gone.",
    remedy="If that chain is lost, `flowcheck restore{this_run!o} --template FILE --out FILE` "
    "gives the newest step of the copy.",
)
COPY_AWAITED = Entry(
    "copies.awaited",
    "{source} answers, and has no state that can be copied yet",
    cause="Its job is not learned, or waits for a base.",
    remedy="Look at the status of that chain. Where it waits for a base, give it one there. The "
    "copy asks again by itself.",
)
COPY_NO_SOURCE = Entry(
    "copies.no_source",
    "{source} does not answer: {why}",
    cause="The machine, its chain or the link is gone, or the address is wrong.",
    remedy="Check the address in `[gradients] chains`; the copy asks again.",
)
COPY_SILENT = Entry("copies.silent", "no answer within {seconds} s")
COPY_TAKES_NOTHING = Entry(
    "copies.takes_nothing",
    "a copy takes no checkpoint of the trainer",
    remedy="Give it to the chain that is copied.",
)
COPY_STATE = Entry(
    "copies.state",
    "copy of {source} in epoch {epoch}: {lag} steps behind ({seconds} s), {bytes:,} bytes received",
)
COPY_STATE_KNOWN = Entry(
    "copies.state_known",
    "copy of {source} in epoch {epoch}, which does not answer: {lag} steps behind the newest that "
    "is known, {bytes:,} bytes received",
)
COPY_TOO_SLOW = Entry(
    "copies.too_slow",
    "the copy needs another whole state, as it is slower than {source}: it is at step {step}",
    cause="The changes between are not kept there any more.",
    remedy="Raise `[copies] memory_bytes` there, or give the copy a faster link or machine.",
)
COPY_FOLLOWER = Entry(
    "copies.follower",
    "copied by {peer}: at step {step}, {lag} steps behind ({seconds} s), {bytes:,} bytes sent",
)
COPY_FOLLOWER_GONE = Entry(
    "copies.follower_gone",
    "was copied by {peer}, which has not asked for {silent} s: it was at step {step}, "
    "{bytes:,} bytes sent",
)
COPY_SUPERSEDED = Entry(
    "copies.superseded",
    "a copy follows a chain of epoch {epoch}, which took the place of this one (epoch {own})",
    cause="This chain was paused, cut off or replaced.",
    remedy="End this chain, or raise its `[copies] epoch` if it is to be followed.",
)
