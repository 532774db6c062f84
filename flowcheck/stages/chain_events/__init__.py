"""Events of a chain: recorded as they happen, with losses, silence and heartbeat."""
