"""Processes, shared memory and files: what the operating system gives. Nothing here knows what a learner is."""
