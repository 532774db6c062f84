"""The updater of a replica that is a copy of another chain's (../replica_copies)."""
