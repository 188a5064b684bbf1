"""Generation, token by token and as the tree of a beam search."""
