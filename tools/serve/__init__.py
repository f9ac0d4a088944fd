"""A local Triton server and an example client."""
