"""The process that a runtime runs in: its cores, its environment and its memory."""
