"""Tries of allowed token sequences: constraints of the output as data, built once and read by every step."""
