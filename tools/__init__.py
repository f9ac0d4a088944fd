"""Measurements, training of the demo model and other scripts of the clone; not installed."""
