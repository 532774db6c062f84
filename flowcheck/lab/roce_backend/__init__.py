"""The part of the lab that runs inside a trainer. It uses torch, the lab's C library and these
files, nothing else."""
