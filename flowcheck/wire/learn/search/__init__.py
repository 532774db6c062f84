"""Which collectives a stream is cut into, and what bears that reading out."""
