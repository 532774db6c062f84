"""Stages as processes: started, watched, restarted, stopped in order."""
