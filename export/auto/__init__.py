"""``--variant auto``: this machine measured, and the variants ranked by predicted time."""
