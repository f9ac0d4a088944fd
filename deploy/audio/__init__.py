"""Audio in, text out: files, log-mel features, transcription."""
