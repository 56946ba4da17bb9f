"""The house rules of CONTRIBUTING.md that a program can check, by reading the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = sorted([*ROOT.glob("csrc/**/*.cpp"), *ROOT.glob("csrc/**/*.h")])
PACKAGE = sorted(ROOT.glob("python/zerocopy/**/*.py"))
MAX_LINES = 350

# Each layer, and the layers it may include. An arrow that is not here points up.
LAYERS = {
    "memory": {"memory"},
    "text": {"memory", "text"},
    "io": {"memory", "io"},
    "container": {"memory", "text", "io", "container"},
    "pickle": {"memory", "text", "pickle"},
    "gds": {"memory", "io", "gds"},
    "watch": {"watch"},
    "bridge": {"bridge"},
    "checkpoint": {"memory", "text", "io", "container", "pickle", "checkpoint"},
    "python": {"memory", "text", "io", "container", "pickle", "checkpoint", "python"},
    "binding": {
        *("memory", "text", "io", "container", "pickle", "checkpoint", "gds", "python"),
        *("bridge", "binding"),
    },
}

# The Python half, from the bottom up. A file imports from the rooms above it in this list, and from its own.
ROOMS = (
    "_version errors environment display progress _interpreters _typing",
    "process notebook",
    "_public_names",
    "_torch",
    "_native",
    "loading",
    "lazy",
    "saving",
    "converting jit gds integrations",
    "distributed",
    "patching",
    "share",
    "share.wire",
    "share.conditions share.objects",
    "share.server share.client",
    "share.worker share.patches",
    "launch",
    "cli",
    "__main__",
)
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms.split()}
MAX_TOP_FILES = {"python/zerocopy": 14, "tests": 10, "benchmarks": 12}

# The files that call mmap: for files, for fresh memory, and in processes that the library only watches.
MAPPING = {ROOT / "csrc" / name for name in ("io/mapping.cpp", "memory/pages.cpp", "watch/area.cpp")}

# Private names of torch outside of _torch*.py: rebuild/ checks the arguments of these builders.
PRIVATE_NAMES = {
    "dense.py": {"torch._neg_view"},
    "layouts.py": {"torch._utils._rebuild_nested_tensor", "torch._utils._rebuild_qtensor"},
    "others.py": {
        "torch._utils._rebuild_device_tensor_from_numpy",
        "torch._utils._rebuild_wrapper_subclass",
    },
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(path: Path) -> str:
    """Return C++ without comments and strings."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", path.read_text(), flags=re.DOTALL)


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), flags=re.MULTILINE)


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "csrc").parts[0]


each_core_file = pytest.mark.parametrize("path", CORE, ids=name_of)
each_module = pytest.mark.parametrize("path", PACKAGE, ids=name_of)


def test_there_is_something_to_check() -> None:
    assert {layer_of(path) for path in CORE} == set(LAYERS)
    assert PACKAGE


@each_core_file
def test_arrows_point_down(path: Path) -> None:
    layer = layer_of(path)
    for included in includes(path):
        folder, slash, _ = included.partition("/")
        if slash and folder in LAYERS:
            assert folder in LAYERS[layer], f"{layer} includes {included}"
            assert (ROOT / "csrc" / included).is_file()


@each_core_file
def test_foreign_headers_are_included_in_their_room_only(path: Path) -> None:
    name = str(path.relative_to(ROOT / "csrc"))
    for included in includes(path):
        if included.startswith(("torch/", "c10/", "ATen/", "caffe2/")):
            assert name == "bridge/bridge.cpp", f"{name} sees torch"
        elif included == "Python.h" or included.startswith("pybind11/"):
            assert layer_of(path) in ("python", "binding", "bridge"), f"{name} sees Python"
        elif included == "zlib.h":
            assert name == "container/inflate.cpp"
        elif included == "libdeflate.h":
            assert name == "container/checksum.cpp"
        elif included == "simdjson.h":
            assert name == "container/safetensors.cpp"
        elif included.endswith(".h") and included.partition("/")[0] not in LAYERS:
            assert layer_of(path) in ("memory", "io", "gds", "watch", "python", "binding"), (
                f"{name} sees the operating system: {included}"
            )


@each_core_file
def test_one_file_maps_files_and_one_maps_memory(path: Path) -> None:
    if path not in MAPPING:
        assert not re.search(r"\b(mmap64|mmap|mremap|munmap)\s*\(", code_of(path))


@each_core_file
def test_libraries_are_opened_in_three_files_only(path: Path) -> None:
    if path not in [
        ROOT / "csrc" / name for name in ("gds/library.cpp", "watch/next.h", "binding/torch_bridge.cpp")
    ]:
        assert "dlfcn.h" not in includes(path)
        assert not re.search(r"\b(dlopen|dlmopen|dlsym)\s*\(", code_of(path))


@each_core_file
def test_header_opens_with_a_comment(path: Path) -> None:
    if path.suffix == ".h":
        assert path.read_text().startswith("// ")
        assert "#pragma once" in path.read_text()


def test_every_source_is_built() -> None:
    listed = (ROOT / "CMakeLists.txt").read_text()
    for path in CORE:
        assert path.suffix == ".h" or name_of(path) in listed, f"{name_of(path)} is not in CMakeLists.txt"


@pytest.mark.parametrize("path", [*CORE, *PACKAGE], ids=name_of)
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def module_of(path: Path) -> str:
    """Return the name of a module below ``zerocopy``."""
    return (
        ".".join(path.relative_to(ROOT / "python/zerocopy").with_suffix("").parts)
        .removesuffix("__init__")
        .strip(".")
    )


def room_of(module: str) -> str:
    """Return the room of a module: its package, for the model server the package in that; a file at the top itself."""
    first, *others = module.split(".")
    return f"share.{others[0]}" if first == "share" and len(others) > 1 else first


MODULES = {module_of(path): path for path in PACKAGE}


def imported(path: Path) -> set[str]:
    """Return the modules of zerocopy that a file imports when it runs, in functions too. Types alone do not count."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for name in names:
        if name.startswith("zerocopy."):
            below = name.removeprefix("zerocopy.")
            found.add(below if below in MODULES else below.rpartition(".")[0] or below)
    return found - {module_of(path)}


def test_every_room_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES if module} == set(FLOOR)


@each_module
def test_imports_run_down(path: Path) -> None:
    module = module_of(path)
    if not module:  # zerocopy itself, which has all public names
        return
    for name in imported(path) & set(MODULES):
        here, there = room_of(module), room_of(name)
        assert here == there or FLOOR[there] < FLOOR[here], f"{module} imports {name}"


@each_module
def test_the_extension_has_one_door(path: Path) -> None:
    assert "_C" not in imported(path) or room_of(module_of(path)) == "_native"


def test_no_files_import_each_other() -> None:
    """Take away what imports nothing that is left, again and again: what remains imports itself."""
    left = {module: imported(path) & set(MODULES) for module, path in MODULES.items()}
    while free := {module for module, names in left.items() if not names}:
        left = {module: names - free for module, names in left.items() if module not in free}
    assert not left


@pytest.mark.parametrize("folder", MAX_TOP_FILES)
def test_a_top_folder_holds_few_files(folder: str) -> None:
    assert len(list((ROOT / folder).glob("*.py"))) <= MAX_TOP_FILES[folder]


def dotted(node: ast.AST) -> str:
    """Return ``"a.b.c"`` for such an expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of torch that a module imports or reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            found = [dotted(node)]
        yield from (name for name in found if name.startswith("torch.") and is_private(name))


@each_module
def test_private_names_of_torch_are_in_one_place(path: Path) -> None:
    if path.parent.name == "_torch":
        return
    allowed = PRIVATE_NAMES.get(path.name, set())
    for name in private_names(ast.parse(path.read_text())):
        # torch._utils is a part of torch._utils._rebuild_qtensor
        assert any(f"{long}.".startswith(f"{name}.") for long in allowed), f"{path.name} uses {name}"


MAKERS = re.compile(
    r"torch\.(empty|empty_strided|zeros|ones|full|eye|tensor|as_tensor|scalar_tensor|arange|rand|randn)"
)


@each_module
def test_new_tensors_name_their_device(path: Path) -> None:
    """The program's default device may be any, such as "meta"."""
    if path.name == "layouts.py":  # it asks which device that is
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and MAKERS.fullmatch(ast.unparse(node.func)):
            assert "device" in {keyword.arg for keyword in node.keywords}, f"line {node.lineno}"


@each_module
def test_the_library_never_prints(path: Path) -> None:
    if path == ROOT / "python/zerocopy/cli/output.py":  # the command line does, there
        return
    calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    assert not [call for call in calls if dotted(call) in ("print", "sys.stdout.write", "sys.stderr.write")]


@each_module
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_tests_that_documents_name_are_there() -> None:
    files = list(ROOT.glob("tests/**/*.py"))
    there = {path.name for path in files} | {name_of(path) for path in files}
    for path in files:
        there |= set(re.findall(r"^\s*def (test_\w+)", path.read_text(), flags=re.MULTILINE))
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        named = set(re.findall(r"`(test_\w+(?:\.py)?|tests/[\w/]+\.py)`", document.read_text()))
        assert named <= there | {"test_serialization.py"}, f"{document.name} names {named - there}"


def test_the_names_of_test_modules_are_unique() -> None:
    """pytest imports them by these names; helper modules too are imported by theirs."""
    names = [path.name for path in ROOT.glob("tests/**/test_*.py")]
    names += [path.name for path in ROOT.glob("tests/support/*.py")]
    assert len(names) == len(set(names))
