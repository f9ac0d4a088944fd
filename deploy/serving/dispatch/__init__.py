"""The open requests of a front (Triton's backend, or the HTTP server), and the worker process that runs them."""
