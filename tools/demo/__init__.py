"""Text and training of the demo model."""
