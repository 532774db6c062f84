"""Records captures of a running job together with the ground truth."""
