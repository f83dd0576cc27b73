"""The papers' master data and streams, made by arithmetic and seeded generators."""
