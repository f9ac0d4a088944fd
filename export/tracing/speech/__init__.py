"""Tracing of speech models: one file a family, named as in ``export/families/speech/``."""
