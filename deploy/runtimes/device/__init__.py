"""What the runtimes on a GPU share: device memory, captured steps, and batches that samples join in slots."""
