"""Tasks: a folder for each, with its data, its models, how they are trained and measured, and its command."""

import lazy_loader

# Each is imported when it is first asked for: commands need much that `import candax` does not load.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
