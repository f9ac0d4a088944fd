"""Names and messages that the parts of serving share."""
