"""Pages of the site that are made from files elsewhere, so that each fact has one source, and links to these files.

The front page is the README; the changelog and others are the files at the root; scripts and notebooks become pages;
the reference is made from what each room exports.
"""

import ast
import base64
import itertools
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Of the repository, and where they are on the site.
AT_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "citation.md",
}
_MIME = {"svg": "svg+xml", "png": "png"}
ROOMS = {
    "candax": "The public face",
    "candax.base": "The seams",
    "candax.samplers": "Samplers",
    "candax.losses": "Losses",
    "candax.rows": "Row-sparse training",
    "candax.models": "Models",
    "candax.training": "Training",
    "candax.diagnostics": "Diagnostics",
    "candax.testing": "Laws to test against",
    "candax.data": "Data",
    "candax.recipes": "Recipes",
    "candax.blocks": "All classes, block by block",
    "candax.cosines": "Cosines",
    "candax.pictures": "Pictures",
}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    made: dict[str, str | bytes] = {}
    for name, page in AT_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        made[page] = text if name.endswith(".md") else f"# Citation\n\n```yaml\n{text}```\n"
    made["examples/index.md"] = _examples(made)
    made["notebooks/index.md"] = _notebooks(made)
    made["reference/index.md"] = _reference(made)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository become links to their pages."""
    here = page.file.src_uri
    source = next((name for name, made in AT_ROOT.items() if made == here), f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        target = _page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if target is None:
            return found[0]
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{'#' + anchor if anchor else ''})"

    return re.sub(r"\]\(((?!\w+:|#)[^)\s]+)\)", link, markdown)


def _page_of(path: str) -> str | None:
    """The page of a file of the repository."""
    if path in AT_ROOT:
        return AT_ROOT[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith(("examples/", "notebooks/")):
        return str(Path(path).with_suffix(".md"))
    return None


def _examples(made: dict[str, str | bytes]) -> str:
    """A page a script, and one that lists them."""
    lines = ["# Examples\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        about = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
        made[f"examples/{path.stem}.md"] = f"# {path.name}\n\n```python\n{source}```\n"
        lines.append(f"* [{path.name}]({path.stem}.md): {about}")
    return "\n".join(lines) + "\n"


def _notebooks(made: dict[str, str | bytes]) -> str:
    """A page a notebook, with its outputs and pictures as they were kept, and one that lists them."""
    lines = ["# Notebooks\n", "Each is in `notebooks/`, to be run in two minutes or less on two cores.\n"]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        parts = []
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            source = "".join(cell["source"])
            parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
            parts.extend(_outputs(cell, f"{path.stem}_{number}", made))
        made[f"notebooks/{path.stem}.md"] = "\n\n".join(parts) + "\n"
        title = next(line for line in parts[0].splitlines() if line.startswith("# "))[2:]
        lines.append(f"* [{title}]({path.stem}.md)")
    return "\n".join(lines) + "\n"


def _outputs(cell: dict[str, Any], name: str, made: dict[str, str | bytes]) -> list[str]:
    """Of a cell: pictures as files beside the page, and what was printed in one piece."""
    parts: list[str] = []
    printed = ""
    for place, output in enumerate(cell.get("outputs", [])):
        data = output.get("data", {})
        kind = next((kind for kind in ("svg", "png") if f"image/{_MIME[kind]}" in data), None)
        if kind is None:
            printed += re.sub(r"\x1b\[[\d;]*m", "", "".join(output.get("text", data.get("text/plain", ""))))
        else:
            content = "".join(data[f"image/{_MIME[kind]}"])
            made[f"notebooks/{name}_{place}.{kind}"] = content if kind == "svg" else base64.b64decode(content)
            parts.append(f"![Output of the cell above]({name}_{place}.{kind})")
    return ([f"```text\n{printed.rstrip()}\n```"] if printed.strip() else []) + parts


def _reference(made: dict[str, str | bytes]) -> str:
    """A page a room, with every name that it exports; what several rooms export is described in the first of them."""
    places: dict[str, str] = {}
    lines: dict[str, str] = {}
    for room in sorted(ROOMS, key=lambda room: room != "candax.base"):  # its types are what all others speak of
        folder = ROOT / room.replace(".", "/")
        names = _exported(folder) if folder.is_dir() else _defined(folder.with_suffix(".py"), room)
        parts = [f"# {ROOMS[room]}\n\n`{room}`"]
        elsewhere = [f"[`{name}`]({places[path]}.md#{path})" for name, path in names.items() if path in places]
        if elsewhere:
            parts.append(f"Also under this name: {', '.join(elsewhere)}.")
        parts.extend(f"::: {path}" for path in dict.fromkeys(names.values()) if path not in places)
        places.update({path: room for path in names.values() if path not in places})
        made[f"reference/{room}.md"] = "\n\n".join(parts) + "\n"
        listed = ", ".join(f"`{name}`" for name in names)
        lines[room] = f"* [{ROOMS[room]}]({room}.md): {listed}"
    return "\n".join(["# Reference\n", *(lines[room] for room in ROOMS)]) + "\n"


def _exported(folder: Path) -> dict[str, str]:
    """Public names of a package, and where each is defined."""
    stub = folder / "__init__.pyi"
    file = stub if stub.exists() else folder / "__init__.py"
    package = ".".join(folder.relative_to(ROOT).parts)
    found = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"candax", *_below(folder, node)}:
            module = f"{package}.{node.module}" if node.level else str(node.module)
            for alias in node.names:
                if module not in {package, "candax.checks"} and not alias.name.startswith("_"):
                    inner = ROOT / module.replace(".", "/")
                    where = _exported(inner) if inner.is_dir() else {}
                    found[alias.asname or alias.name] = where.get(alias.name, f"{module}.{alias.name}")
        elif isinstance(node, ast.ImportFrom) and node.level and node.module is None and package == "candax.recipes":
            for alias in node.names:
                inner = _exported(folder / alias.name)
                found.update({f"{alias.name}.{name}": path for name, path in inner.items()})
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found[node.name] = f"{package}.{node.name}"
    return dict(sorted(found.items()))


def _below(folder: Path, node: ast.ImportFrom) -> set[str]:
    """Names of what a relative import may begin with."""
    return {path.stem for path in folder.iterdir()} if node.level else set()


def _defined(file: Path, module: str) -> dict[str, str]:
    """Public classes, functions and types of a module; a type has a docstring below it."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node, below in itertools.pairwise(body):
        if isinstance(below, ast.Expr) and isinstance(node, ast.Assign | ast.AnnAssign):
            names.append(ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target))
    return {name: f"{module}.{name}" for name in names if not name.startswith("_")}
