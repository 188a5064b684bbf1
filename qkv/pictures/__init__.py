"""Text, SVG and HTML views of models, attention patterns and alignments. Runs no model."""
