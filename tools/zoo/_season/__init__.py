"""Parts of the zoo's seasoning: which weights belong together, the changes, their levels, and what is left the same."""
