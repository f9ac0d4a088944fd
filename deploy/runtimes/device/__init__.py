"""Device memory, captured steps, and batches that samples join in slots, for the runtimes on a GPU."""
