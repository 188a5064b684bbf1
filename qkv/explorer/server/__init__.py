"""The page and the HTTP application that answers its requests."""
