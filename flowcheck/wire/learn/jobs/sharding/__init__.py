"""Jobs whose optimizer or parameters are parted over ranks: what they gather is followed."""
