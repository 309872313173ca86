"""Processes, shared memory and files: motet's use of the operating system. Nothing here depends on training code."""
