"""The sections of `tools/gpu_check.py`, a module each; modules that begin with an underscore are their helpers."""
