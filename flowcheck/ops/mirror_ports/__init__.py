"""`flowcheck ports`: chooses the switch ports to mirror from the layout of the cluster."""
