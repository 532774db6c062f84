"""The layout of the cluster: nodes, switches, cables, rings."""
