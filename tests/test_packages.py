"""The layout: who imports whom, and what each package says it contains."""

import ast
import re
from pathlib import Path

from tests.conftest import REPOSITORY

import pytest

PACKAGES = sorted(
    path.parent.relative_to(REPOSITORY)
    for root in ("utils", "papers")
    for path in (REPOSITORY / root).rglob("__init__.py")
    if path.parent.name != "papers"
)


def imports(path: Path) -> set[str]:
    """Return the modules of utils and papers that a module imports, as dotted names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("utils", "papers")}


def listed(package: Path) -> list[str]:
    """Return the modules that a package's docstring lists, in its order."""
    module = ast.parse((REPOSITORY / package / "__init__.py").read_text())
    docstring = ast.get_docstring(module, clean=False)
    return re.findall(r"^ *(\w+)  +\S", docstring or "", flags=re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_a_package_lists_its_modules(package):
    folder = REPOSITORY / package
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert sorted(listed(package)) == sorted(modules)


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_a_module_imports_only_from_those_above_it(package):
    order, prefix = listed(package), ".".join(package.parts)
    for path in (REPOSITORY / package).rglob("*.py"):
        inside = path.relative_to(REPOSITORY / package).with_suffix("").parts
        if inside[0] not in order:
            continue
        above = order[: order.index(inside[0])] + ([inside[0]] if len(inside) > 1 else [])
        for name in imports(path):
            if name.startswith(f"{prefix}."):
                assert name[len(prefix) + 1 :].split(".")[0] in above, (path, name)


def test_utils_knows_no_paper():
    for path in (REPOSITORY / "utils").rglob("*.py"):
        assert all(name.split(".")[0] == "utils" for name in imports(path)), path


def test_utils_knows_no_script():
    """Neither code nor comments name one: callers say what to run, or the docs do."""
    scripts = [path.stem for path in REPOSITORY.glob("*.py")]
    # "train" and "score" are words, too: as scripts they end in .py.
    names = [name if "_" in name else rf"{name}\.py" for name in scripts]
    pattern = re.compile(rf"\b({'|'.join(names)})\b")
    for path in (REPOSITORY / "utils").rglob("*.py"):
        assert pattern.findall(path.read_text()) == [], path


def test_scripts_do_not_import_each_other():
    scripts = {path.stem for path in REPOSITORY.glob("*.py")}
    for path in REPOSITORY.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        assert not scripts & {name.split(".")[0] for name in names}, path


SHARED = {"PAPER", "CLAIMS", "SECTIONS", "TERMS", "INTRODUCTION"}  # every paper has them


def defined(path: Path) -> set[str]:
    """Return the classes, functions and constants that other modules can import from a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in filter(None, targets):
            assigned = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
            names |= {name for name in assigned if name.isupper()}
    return {name for name in names if name[0] != "_"}


def test_no_two_things_share_a_name():
    """Nor does a script give a constant or class a name that it could import."""
    places: dict[str, list[str]] = {}
    for root in ("utils", "papers"):
        for path in (REPOSITORY / root).rglob("*.py"):
            for name in defined(path) - SHARED:
                places.setdefault(name, []).append(str(path.relative_to(REPOSITORY)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    for path in REPOSITORY.glob("*.py"):
        assert {name for name in defined(path) if not name.islower()} & places.keys() == set(), path
