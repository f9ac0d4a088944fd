"""Passes that give a traced graph its canonical form; the tracing of a family runs them."""
