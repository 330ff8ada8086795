"""Sequences: which item comes next, by a transformer over packed rows."""
