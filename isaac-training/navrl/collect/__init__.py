"""Ways to carry batches from the drones to the learner."""
