"""The replica's files in shared memory: the state file with its versions, the digest log, the
gradient log."""
