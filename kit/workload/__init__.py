"""Prompt sources, one file each, and how a workload is frozen. Knows nothing of servers."""
