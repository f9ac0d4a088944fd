"""Model families: what they share, those with code of their own by what they read, and the table of all."""
