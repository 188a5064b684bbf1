"""Learning: objectives, the loop, checkpoints. Knows no tasks: what is measured is given to it."""
