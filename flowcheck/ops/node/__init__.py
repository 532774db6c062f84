"""Preparing a node: devices given to DPDK and taken back, each write said before it is done."""
