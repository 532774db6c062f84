"""Schedules of faults, each drawn from one seed, over the whole chain and over its inner objects.

A schedule is a small job whose truth is known, what is done to its frames, to the processes, to
memory and disks, and to the files between two lives. It ends in exact, named loss or refused.
"""
