"""How the tests compile. Importing this sets the flags; it must come before the first computation."""

import atexit
import importlib.metadata
import os
import shutil
import tempfile

import jax

# Most of the suite's time is compilation of small programs that run once: optimising them costs more than it saves.
_flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
# Meshes are tested on virtual devices, and every worker may get those tests.
_flags.append("--xla_force_host_platform_device_count=8")
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # They save a third of the time to compile. Other versions of XLA may not know them, and stop at what they do not.
    _flags += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("XLA_FLAGS", " ".join(_flags))
# A line of Python for each operation is enough: whole stacks took a tenth of the time to trace and lower.
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "0")
jax.config.update("jax_include_full_tracebacks_in_locations", False)
# Programs that tests start compile much that another of them has: they inherit the folder where each keeps what it
# compiled, which is gone when the run ends.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="candax-compiled-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": _folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
