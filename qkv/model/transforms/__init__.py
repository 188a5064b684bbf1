"""Changes of a model: position embeddings, pooling, heads."""
