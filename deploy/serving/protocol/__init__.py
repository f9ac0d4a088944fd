"""Names and messages that the backend, the worker and the repository share."""
