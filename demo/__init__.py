"""Two small trainings, eager and compiled from the same seed, and what they cost."""
