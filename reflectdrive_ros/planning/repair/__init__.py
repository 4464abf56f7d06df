"""Repair of a plan that is not safe, and of one that leads a lost car away from its route."""
