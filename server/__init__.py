"""The path that OpenEnv looks for: the server is `mikit.arena.server`."""
