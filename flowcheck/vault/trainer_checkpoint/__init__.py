"""The trainer's own checkpoint: what is where in it, read into flat state and filled with a"""
