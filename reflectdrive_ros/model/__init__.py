"""Networks (torch)."""
