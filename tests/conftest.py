"""Every function of candax is type- and shape-checked while tests run (jaxtyping annotations, checked by beartype)."""

from jaxtyping import install_import_hook

install_import_hook("candax", "beartype.beartype")
