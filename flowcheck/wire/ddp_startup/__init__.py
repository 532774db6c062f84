"""What DistributedDataParallel sends before its first gradient."""
