"""The checks of a bundle: the guard, the comparison with torch, and the error of a precision."""
