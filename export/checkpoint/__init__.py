"""A checkpoint on disk: found, checked and loaded; nothing in it is trusted before it is checked here."""
