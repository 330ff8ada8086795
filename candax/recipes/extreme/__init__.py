"""Extreme classification: sparse features to classes of which an example has one or several."""
