"""HTTP parts that servers and clients share: connection limit, TLS, ranges, deadlines."""
