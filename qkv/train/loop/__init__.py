"""The training loop: trainer, optimizers, learning rate schedule, checkpoints."""
