"""Embedded lexical engine on SQLite FTS5, which comes with Python."""
