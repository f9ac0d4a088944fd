"""Encoder-decoders of text with code of their own: one file a family."""
