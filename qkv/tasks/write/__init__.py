"""Tasks that generate text: translate, summarize, complete, generative answers."""
