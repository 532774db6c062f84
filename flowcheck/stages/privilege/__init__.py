"""Which user and capabilities a process of FlowCheck's has, and how it gives up more."""
