"""An observation in, a plan out: the engine and the backends of its network."""
