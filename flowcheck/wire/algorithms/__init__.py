"""NCCL's algorithms: a name, a descriptor and a row of one registry for each."""
