"""A step of the replica as trainer objects, and FlowCheck's own checkpoint folders."""
