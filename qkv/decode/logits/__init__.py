"""What changes logits before the next token is chosen: processors, sampling, grammars."""
