"""Tracing of a prompt or source, and of a decoder step: what families share, and their own code by what they read."""
