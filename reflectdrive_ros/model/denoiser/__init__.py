"""Denoising networks on lanes and agents: the planner of ReflexDiffusion."""
