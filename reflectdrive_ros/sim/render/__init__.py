"""The renderer of the proving ground's cameras."""
