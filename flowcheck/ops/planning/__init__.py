"""`flowcheck plan`: predicts the traffic and the memory of a training job before it runs."""
