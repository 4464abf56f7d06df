"""Scene sets from recordings."""
