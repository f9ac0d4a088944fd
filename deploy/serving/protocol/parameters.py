"""Names in a served model's folder, in its configuration and in the environment of its server."""

BUNDLE = "bundle"
"""The bundle's folder, next to model.py."""
TRIES, TRIE_SUFFIX = "tries", ".trie"
"""The folder of tries, next to model.py, and the suffix of their files."""
ENGINE, MAX_ROWS, URL, DEADLINE = "engine", "max_rows", "url", "deadline_s"
MAX_REQUEST_ROWS = "max_request_rows"
"""Parameters in the model's configuration. A request may have a shorter deadline among its own parameters."""
MAX_PARAMETER_BYTES = 1 << 16
"""Bytes of a request's parameters."""
URL_VARIABLE = "TIGHTBEAM_TRITON_URL"
"""Environment variable with the server's HTTP address, in place of the one in the configuration."""
