"""Claims: what the papers state in numbers, compared with the figures drawn here."""
