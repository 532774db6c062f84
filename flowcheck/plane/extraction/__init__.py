"""Parser and extractor of one ring: one C call per span."""
