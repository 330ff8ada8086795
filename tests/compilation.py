"""How the tests compile. Importing this sets the flags; it must come before the first computation."""

import importlib.metadata
import os

# Most of the suite's time is compilation of small programs that run once: optimising them costs more than it saves.
_flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
# Meshes are tested on virtual devices, and every worker may get those tests.
_flags.append("--xla_force_host_platform_device_count=8")
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # They save a third of the time to compile. Other versions of XLA may not know them, and stop at what they do not.
    _flags += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("XLA_FLAGS", " ".join(_flags))
