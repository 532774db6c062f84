"""Port mirroring on switches: what is asked, what a platform can hold, its commands, its rules."""
