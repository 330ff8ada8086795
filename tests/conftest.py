"""What all tests share: run-time type checks, and less time spent in the compiler."""

from jaxtyping import install_import_hook

import tests.compilation  # sets flags
import tests.typecheck  # noqa: F401  # the hook takes it from the loaded package

# Every function of candax is type- and shape-checked (jaxtyping annotations, checked by beartype).
install_import_hook("candax", "tests.typecheck.typecheck")
