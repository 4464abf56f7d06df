"""Scenes as arrays: in memory, on disk, in shards, and prepared for training."""
