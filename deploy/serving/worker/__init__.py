"""The worker: the process that holds the model."""
