"""Training: objectives, the loop, checkpoints. It does not import tasks."""
