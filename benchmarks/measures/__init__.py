"""What `targets.py` measures: the engine alone, and ss.join on Spark against other ways."""
