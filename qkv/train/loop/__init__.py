"""The training loop: trainer, optimizers, schedule, checkpoints."""
