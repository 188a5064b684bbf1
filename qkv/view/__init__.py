"""View: weights between two lists of words, as a picture and as a page. What is shown is given."""
