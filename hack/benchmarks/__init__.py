"""Benchmarks of the agent against a local API server over TLS, in one run, as ratios."""
