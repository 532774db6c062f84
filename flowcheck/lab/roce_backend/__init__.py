"""What runs inside a trainer of the lab. torch, the C library, these files, nothing else."""
