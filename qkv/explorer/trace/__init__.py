"""One forward pass of a model with the weights of all of its attentions, and how they come about."""
