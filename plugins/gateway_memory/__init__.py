"""The reference engine: in this process, small, complete. Copy it to write an adapter of your own."""
