"""Tasks, which map texts or images to small frozen dataclasses."""
