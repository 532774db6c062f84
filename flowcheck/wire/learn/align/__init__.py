"""Lays what a program expects over what each connection carried."""
