"""What a training run is: its settings, directory, progress, saving, evaluation and resume."""
