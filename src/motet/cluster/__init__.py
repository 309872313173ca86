"""The same roles on Ray: actors, learners, episodes and plans on other nodes."""
