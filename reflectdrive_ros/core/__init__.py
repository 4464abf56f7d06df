"""Types, frames, the lane graph, token layouts and settings: what every room may use."""
