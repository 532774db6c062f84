"""Figures per stage, as ratios measured in the same run. Not collected by pytest."""
