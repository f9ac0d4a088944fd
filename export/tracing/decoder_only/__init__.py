"""Tracing of decoder-only models: one file a family, named as in ``export/families/decoder_only/``."""
