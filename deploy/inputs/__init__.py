"""Inputs as samples: lines, files, recordings, windows and images, their order, and the loop that runs them."""
