"""Operators of domain ``tightbeam``: schema and ONNX functions (``ops``), kernels, and the adapters of each runtime."""
