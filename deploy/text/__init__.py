"""Text in, text out: tokenizer, incremental detokenizer, padding, and batches of input lines."""
