"""Tracing of models that read images: one file a family, named as in ``export/families/image/``."""
