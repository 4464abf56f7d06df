"""Supervised training of the planners' networks."""
