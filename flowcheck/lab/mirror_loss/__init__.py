"""Loss of mirrored copies: frames dropped at the switch's monitor port, and counted."""
