"""Models in words and pictures: trees of modules, diagrams, attention patterns."""
