"""The scheduler: samples wait, are encoded, join the running batch of their lane, take steps, and leave the batch."""
