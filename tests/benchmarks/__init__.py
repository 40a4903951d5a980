"""Measurements, run by `make bench`; their results are kept in docs/benchmarks.md."""
