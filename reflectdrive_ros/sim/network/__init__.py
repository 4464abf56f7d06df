"""Road networks: towns, roads, lanes and routes."""
