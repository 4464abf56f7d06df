"""The masked-discrete-diffusion network over action tokens, its operators and its rollout."""
