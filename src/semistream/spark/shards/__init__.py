"""Joining with a master table in shards: dividing the stream, and sharing a task's memory."""
