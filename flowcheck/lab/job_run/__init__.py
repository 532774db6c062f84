"""A training job in the lab from launch to comparison: trainers, FlowCheck's services, display,
digests."""
