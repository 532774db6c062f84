"""Files of any output: written directly to disk, checksummed, verified, and described by a
manifest that comes last."""
