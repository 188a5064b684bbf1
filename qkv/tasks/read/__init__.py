"""Tasks that analyze texts or images: classify, tag, fill, answer, embed, match, detect, score."""
