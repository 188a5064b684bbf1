"""Reports of a training run: console, plot, TensorBoard."""
