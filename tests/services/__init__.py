"""Real services on loopback, for tests: PostgreSQL, MariaDB, Kafka, and one of the S3 protocol."""
