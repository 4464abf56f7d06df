"""Planners scored on scene sets and in closed loop."""
