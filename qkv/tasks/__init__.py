"""Tasks: where text meets the network. What a user gives goes in, small frozen dataclasses come out."""
