"""Search algorithms: greedy and sampling, beam, contrastive, speculative."""
