"""From decoded points to a path and a speed profile that the vehicle can follow."""
