"""Input that nobody would give on purpose, seeded and bounded: `make fuzz`, whose table is in docs/trust.md."""
