"""The network: layers, attention, feed-forward, embeddings and heads, built from a Spec."""
