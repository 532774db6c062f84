"""Where the replica lives: the state file, its versions and digests, the log of gradients."""
