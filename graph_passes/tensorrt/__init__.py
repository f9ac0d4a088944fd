"""Passes that give a finished variant the form that TensorRT takes."""
