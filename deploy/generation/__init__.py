"""Settings of one generation: checkpoint defaults merged with the caller's arguments, checked and resolved."""
