"""Weights to ONNX graphs, quantised graphs and TensorRT engines."""
