"""What pictures are drawn with: SVG elements, colors, images of matrices, tokens as text."""
