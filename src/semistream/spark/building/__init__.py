"""Building master tables from Spark DataFrames, however large."""
