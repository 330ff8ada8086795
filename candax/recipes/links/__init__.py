"""Link prediction: which entity completes a triple, ranked among all entities."""

from candax.recipes.links.metrics import evaluate_links

__all__ = ["evaluate_links"]
