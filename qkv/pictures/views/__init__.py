"""The pictures of the explorer: heads, matrices, neurons, candidates, beams, masks, images."""
