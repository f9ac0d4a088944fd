"""Passes that give a traced graph its canonical form."""
