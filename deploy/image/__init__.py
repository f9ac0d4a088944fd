"""Image processors: the pixels or patches that the encoder takes."""
