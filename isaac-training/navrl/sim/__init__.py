"""Where drones are and what the LiDAR sees."""
