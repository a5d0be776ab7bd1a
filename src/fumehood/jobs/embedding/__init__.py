"""Text as vectors, without a model service: all-MiniLM-L6-v2 in numpy."""
