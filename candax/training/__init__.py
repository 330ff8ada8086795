"""Training: one step, on one device or many, one loop, checkpoints, evaluation. Names are in ``__init__.pyi``."""

import lazy_loader

# Each name is imported when it is first used: evaluation and checkpoints load libraries that a step does not need.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
