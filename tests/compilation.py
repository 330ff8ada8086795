"""How the tests compile. Importing this sets the flags; it must come before the first computation."""

import functools
import importlib.metadata
import os

import jax

# Most of the suite's time is compilation of small programs that run once: optimising them costs more than it saves.
_flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Saves a quarter of the time to compile. Other versions of XLA may not know the flag, and stop at what they do not.
    _flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_flags))

# For a small program that runs very often.
optimised = functools.partial(
    jax.jit,
    compiler_options={"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False},
)
