"""Images in, text out: files, and the pixels that the encoder takes."""
