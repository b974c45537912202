"""What the drone is asked to do."""
