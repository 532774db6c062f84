"""Applies mirror sessions to switches that can also be read back: Open vSwitch, Linux tc,
SONiC.

`switch_backends` chooses the backend; each has a `*_state` (what the switch holds) and a `*_mirror`
(what is wanted, and the commands). `reconciler` is common: observe, show the difference, run,
verify, undo.
"""
