"""The networks, and decoding written once (torch)."""
