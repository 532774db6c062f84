"""Mirror sessions brought to what is asked, on switches that can be read back as well as told.

`target` chooses one of `ovs`, `tc`, `sonic`; each knows how to look (`*_state`), what is ours and
what to run. `bring` is the way common to all: look, tell the difference, act, look again, undo.
"""
