"""Model families: one file a family with code of its own, and the table of all."""
