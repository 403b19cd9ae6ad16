"""The kit's client held against a server that knows when it sent every chunk, beside the least that others can do."""
