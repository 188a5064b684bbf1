"""What a model reads: texts, images and clips as the arguments of a call, with the labels of its tokens."""
