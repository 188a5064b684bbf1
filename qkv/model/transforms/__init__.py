"""Changes of a model's Spec: positions, pooling, heads."""
