"""candax: train JAX models with huge output layers without computing all classes. Names are in ``__init__.pyi``."""

import lazy_loader

# Each is imported when it is first asked for, so that a user pays for what he uses.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
