"""What an ETL does with a look-up: surrogate keys, no duplicates, new and changed rows."""
