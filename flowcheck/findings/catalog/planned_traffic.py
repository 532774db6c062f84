"""`flowcheck plan`: what its figures rest on."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

REVERSE_ORDER = Entry(
    "plan.reverse_order_of_gradients",
    "gradients become ready in the reverse of the registration order: give --loss, a function "
    "whose backward pass shows the real order",
)
ONE_RANK_BEHIND_PORT = Entry(
    "plan.one_rank_behind_port", "one rank behind the port, which carries all of its channels"
)
PROTOCOL_BY_SIZE = Entry(
    "plan.protocol_by_size",
    "LL below {bytes:,} bytes and Simple from there on: NCCL's cost model decides; give --protocol "
    "where NCCL_PROTO is set",
)
ONE_CHANNEL = Entry(
    "plan.one_channel",
    "1 channel: NCCL_DEBUG=INFO prints the real number; give it with --channels",
)
NEWEST_NCCL = Entry("plan.newest_nccl", "NCCL 2.29 or newer: give the release with --nccl")
DEFAULT_OPTIMIZER = Entry(
    "plan.default_optimizer", "{optimizer}: give the trainer's with --optimizer"
)
STAGING_TOO_SMALL = Entry(
    "plan.staging_too_small",
    "set [staging] size_bytes = {needed} in the job file: the default is {default}",
)
