"""The laws that every sampler and every loss must obey, checked over one table of all of them (``tables.py``)."""
