"""Retrieval: which item comes next, measured over all items, by exact search or through an index."""

from candax.recipes.retrieval.metrics import Search, evaluate_retrieval, exact_search, index_search

__all__ = ["Search", "evaluate_retrieval", "exact_search", "index_search"]
