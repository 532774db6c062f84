"""Complete steps applied to the replica."""
