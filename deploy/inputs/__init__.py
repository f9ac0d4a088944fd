"""What becomes samples, and in which order: lines, files, recordings, windows, images; and the loop that runs them."""
