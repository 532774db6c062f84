"""Packets from a NIC or a capture file into rings, and parsed there."""
