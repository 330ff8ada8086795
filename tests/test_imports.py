"""What an import of candax loads: nothing heavy that JAX, Flax and Optax do not load themselves."""

import os
import re
import subprocess
import sys
from pathlib import Path

HEAVY = {"grain", "matplotlib", "orbax", "pandas", "polars", "scipy.sparse", "sklearn", "tensorstore"}
PUBLIC = "cx.Head, cx.Embed, cx.Optimizer, cx.value_and_grad, cx.sampled_loss, cx.check, cx.refresh, cx.accumulate"
ROOMS = "cx.samplers.uniform, cx.losses.css, cx.rows.lookup, cx.models.Classifier, cx.base, cx.blocks"


def loaded(code: str) -> set[str]:
    """Modules in ``sys.modules`` after some code, in a fresh interpreter."""
    code += "; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_candax_and_using_its_first_two_layers_loads_nothing_heavy():
    theirs = loaded("import jax, flax.nnx, optax")
    assert "jax" not in loaded("import candax")
    assert not (loaded(f"import candax as cx; {PUBLIC}; {ROOMS}") - theirs) & HEAVY


def test_help_does_not_wait_for_jax():
    for args in (["--help"], ["experiment", "--help"]):
        code = f"import contextlib, candax.cli\nwith contextlib.suppress(SystemExit): candax.cli.main({args})\n"
        found = loaded(code.rstrip() + "\npass")
        assert "tyro" in found
        assert "jax" not in found


def test_help_of_a_command_waits_for_nothing_but_jax_and_what_its_settings_need():
    found = loaded("import candax.data, candax.recipes.common")
    assert not found & {"matplotlib", "orbax.checkpoint", "sklearn"}


def test_every_name_of_the_public_face_is_there():
    import candax

    for package in (candax, candax.training):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_no_name_is_exported_by_two_rooms():
    """But for names of different things, which their rooms tell apart."""
    import importlib
    import pkgutil

    import candax

    names = ["candax", *(found.name for found in pkgutil.walk_packages(candax.__path__, "candax.") if found.ispkg)]
    rooms = [importlib.import_module(name) for name in names]
    exported = [(name, id(getattr(room, name))) for room in rooms for name in getattr(room, "__all__", [])]
    assert len(exported) > 200
    assert [name for name, thing in exported if exported.count((name, thing)) > 1] == []


def test_every_command_names_what_is_there():
    import importlib

    from candax import cli

    for commands in (cli.COMMANDS, cli.EXPERIMENTS):
        for module, settings, function, line in commands.values():
            room = importlib.import_module(module)
            assert callable(getattr(room, settings)), settings
            assert callable(getattr(room, function)), function
            assert line.endswith((".", "?"))


def test_a_user_s_file_type_checks_and_a_wrong_word_in_it_is_found(tmp_path):
    """Under mypy's strict mode, from outside, as an installed library is seen."""
    text = (Path(__file__).parent / "typing_cases" / "user.py").read_text()
    for name, code in (("right.py", text), ("wrong.py", text.replace("num_epochs", "num_epoch"))):
        (tmp_path / name).write_text(code)
    # One run for both: what takes long is to read the library.
    options = ["--strict", "--follow-imports=silent", "--ignore-missing-imports", f"--cache-dir={os.devnull}"]
    command = [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "right.py" not in done.stdout
    assert re.search(r'^wrong.py:.*Unexpected keyword argument "num_epoch"', done.stdout, re.MULTILINE), done.stdout
