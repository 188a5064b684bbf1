"""Changes of the logits before a token is selected: processors, sampling filters, grammars."""
