"""The step journal: what each step of a replica was made with, in a folder that survives the chain
and the machine (`[gradient_log] folder`).

A saved checkpoint and the entries behind it give every later step again, bit for bit: each entry
names the digest of the state that it was applied to and of the state it led to. So entries form
chains by their digests. Of two that lead on from one state, the replica went on by the later one.
"""
