"""Search methods: greedy and sampling, beam, contrastive, speculative."""
