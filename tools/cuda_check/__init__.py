"""The check of the CUDA kernels' machine code, without a GPU: ``make cuda-check``."""
