"""The command lines: options in, one call, messages and an exit code out."""
