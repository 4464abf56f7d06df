"""Recordings through the engine or the node: plans, scores, reports, comparisons."""
