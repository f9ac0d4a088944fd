"""Models that read images with code of their own: one file a family."""
