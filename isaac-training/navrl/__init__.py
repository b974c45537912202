"""Safe drone flight among static and moving obstacles: simulator, task, learning, and what a person sees of it."""
