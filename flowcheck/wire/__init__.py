"""Pure knowledge of what NCCL and DDP put on the wire. No I/O, no torch, no zmq."""
