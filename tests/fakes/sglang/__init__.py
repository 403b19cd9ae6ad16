"""A stand-in for tests: speaks the HTTP API of an SGLang server and computes nothing."""
