"""What all tests share: run-time type checks, and less time spent in the compiler."""

import os

# Most of the suite's time is compilation of small programs that run once: optimising them costs more than it saves.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

from jaxtyping import install_import_hook

import tests.typecheck  # noqa: F401  # the hook takes it from the loaded package

# Every function of candax is type- and shape-checked (jaxtyping annotations, checked by beartype).
install_import_hook("candax", "tests.typecheck.typecheck")
