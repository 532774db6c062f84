"""Steps over HTTP, and from wherever they lie: a server that reads, a client that goes on."""
