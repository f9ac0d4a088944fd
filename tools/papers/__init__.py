"""The figures of the papers next to those of our formulas and measurements."""
