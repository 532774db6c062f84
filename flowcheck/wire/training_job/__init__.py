"""The records of a learned training job, and the placement tables computed from it."""
