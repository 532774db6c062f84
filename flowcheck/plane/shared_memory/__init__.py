"""Files in shared memory as Python sees them."""
