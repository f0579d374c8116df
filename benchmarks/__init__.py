"""Measurements, side by side with peers in one run: ``python -m benchmarks``. See docs/performance.md."""
