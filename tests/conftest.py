"""Every function of candax is type- and shape-checked while tests run (jaxtyping annotations, checked by beartype)."""

from jaxtyping import install_import_hook

import tests.typecheck  # noqa: F401  # the hook takes it from the loaded package

install_import_hook("candax", "tests.typecheck.typecheck")
