"""Documents: files of text whose structure stays while their texts are translated or summarised."""
