"""Samples that join and leave a running batch: what a sample is, who is encoded next, the batch, and their turns."""
