"""Tasks that read text: classify, tag, fill, answer, embed, match, detect, score."""
