"""How often packet loss stops a replica, and what a second copy saves: `flowcheck plan-loss`."""
