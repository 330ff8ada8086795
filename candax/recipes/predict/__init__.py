"""Finished runs in use: `candax predict`, and ``candax.recipes.load``."""
