"""Audio signals: the features of speech models, and the times of tokens and segments."""
