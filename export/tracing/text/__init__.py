"""Tracing of encoder-decoders of text: one file a family, named as in ``export/families/text/``."""
