"""The user and capabilities of FlowCheck's processes, and how they drop privileges."""
