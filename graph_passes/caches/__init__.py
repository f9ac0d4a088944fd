"""What a decoder layer caches: the kinds, their bytes and cost, and one pass for each kind."""
