"""The TensorRT backend: device memory, engines and their cache."""
