"""Collectives laid over the sends of a communicator: what may come next, whether it fits, what it
held.

| Question | Modules |
| --- | --- |
| how large may the next one be? | `totals`, by the sizes of the next sends |
| which may it be? | `candidates` |
| does it fit, on which channels, and who writes? | `match`, `sounding` (its writers open) |
| which of them one after the other? | `cut`, the search, as far as its `purse` goes |
| what did it hold? | `place`; `p2p` for what point-to-point sends add |
| is it what it was read as? | `echo` |
"""
