"""Decoder-only models with code of their own: one file a family."""
