"""Which ports to mirror: from a job's layout to (switch, port, direction) pairs and monitors."""
