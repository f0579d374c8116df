"""The engine kind ``weaviate``; README.md has the settings and what was verified."""
