"""Observation to model inputs: the same code for training and driving."""
