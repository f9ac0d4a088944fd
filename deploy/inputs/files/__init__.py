"""Sound and image files: opened, checked and decoded to samples and pixels."""
