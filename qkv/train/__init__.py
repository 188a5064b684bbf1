"""Training: objectives, training loop, checkpoints, evaluation. Does not depend on tasks."""
