"""Changes of a model: other position embeddings, pooling, other heads."""
