"""NCCL's collectives: which bytes each message carries, by ring and by tree."""
