"""Conversations: messages, the checkpoint's chat template, and the tokens of both."""
