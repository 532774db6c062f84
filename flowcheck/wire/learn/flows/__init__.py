"""From RDMA messages to connections, and from these to the rings and trees they may be of.

| Step | Modules |
| --- | --- |
| a flow's writes become NCCL's sends | `trains` (each packet a write), `line_flags`, `streams` |
| the other direction says where they may go | `grants`, `granted_buffers` |
| what is none of NCCL's goes | `foreign` |
| several queue pairs become one connection | `striped`: by `turns`, or `pieces` of each send |
| sends get their numbers | `numbering`; of flows that lack nothing all at once: `clean_flows` |
| all of it, flow by flow | `roles` |
| connections by communicator | `rows` (made together), `groups` (by hosts) |
| channels of connections | `channels` |
| how many ranks, and GPUs of a node | `counted`, `nodes` |
| what they may be of | `rings`, `trees` |
"""
