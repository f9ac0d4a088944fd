"""Everything that decides that a bundle is right: the guard, the comparison with torch, and the error of a precision."""
