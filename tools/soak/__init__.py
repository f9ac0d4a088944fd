"""A soak of a served repository: good and hostile requests, kills and a full disk (``make soak``)."""
