"""The notebooks of examples/notebooks: run from top to bottom, and kept tidy."""
