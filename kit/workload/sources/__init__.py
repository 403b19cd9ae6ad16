"""One file per prompt source; a file's name, with '-' for '_', is what `source` says in a scenario."""
