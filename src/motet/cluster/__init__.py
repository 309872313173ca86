"""The Ray engine: actors, learners, evaluation workers and planning workers on other nodes."""
