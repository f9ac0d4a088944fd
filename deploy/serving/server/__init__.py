"""A Triton Inference Server on this machine."""
