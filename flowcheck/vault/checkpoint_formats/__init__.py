"""All checkpoint formats that FlowCheck writes and reads: their table, and a module for each."""
