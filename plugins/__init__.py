"""The operators of domain ``tightbeam``: tables and ONNX functions (``ops``), kernels, and each runtime's adapter."""
