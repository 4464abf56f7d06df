"""The expert driver, the scenes it is recorded in, and their scenario tags."""
