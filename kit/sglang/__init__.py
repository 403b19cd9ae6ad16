"""What SGLang says and accepts, by version: arguments, start-up log, control endpoints. Knows nothing of Docker."""
