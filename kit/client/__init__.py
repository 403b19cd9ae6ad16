"""The load client: a program of its own that drives one workload and writes raw facts. Knows nothing of statistics."""
