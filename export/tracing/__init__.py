"""Tracing a model with torch's exporter: one prompt or source, and one decoder step."""
