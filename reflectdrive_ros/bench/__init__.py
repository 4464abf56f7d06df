"""Measurements of speed, memory and decoding, each with its physical bound or its baseline."""
