"""Applies mirror sessions to switches that can also be read back: Open vSwitch, Linux tc,
SONiC.

`switch_backends` chooses the backend; each has a `*_state` (what the switch holds) and a `*_mirror`
(what is wanted, and the commands). `reconciler` is common: observe, show the difference, run,
verify, undo.

`target` chooses one of `ovs`, `tc`, `sonic`; each knows how to look (`*_state`), what is ours and
what to run. `bring` is the way common to all: look, tell the difference, act, look again, undo.
"""
