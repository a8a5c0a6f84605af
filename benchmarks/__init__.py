"""Speed, measured beside what one would use instead: `python -m benchmarks` (docs/performance.md)."""
