"""The house rules of CONTRIBUTING.md that a program can check, by reading the sources."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from prose import ROOT, dotted, nodes, text

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
    "bridge": {"bridge"},
    "checkpoint": {"memory", "text", "io", "container", "pickle", "checkpoint"},
    "python": {"memory", "text", "io", "container", "pickle", "checkpoint", "python"},
    "binding": {
        *("memory", "text", "io", "container", "pickle", "checkpoint", "python"),
        *("bridge", "binding"),
    },
}

# The Python half, from the bottom up. A file imports from the rooms above it in this list, and from its own.
ROOMS = (
    "_version display",
    "errors environment progress _interpreters _typing",
    "process notebook remote",
    "_public_names",
    "_torch",
    "_native",
    "loading",
    "catalogue",
    "lazy",
    "saving",
    "converting jit export gds integrations numpy",
    "distributed",
    "patching",
    "share.conditions",
    "share.cache",
    "aoti",
    "share.objects",
    "share",
    "share.patches",
    "launch",
    "cli",
    "__main__",
)
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms.split()}
MAX_TOP_FILES = {"python/zerocopy": 14, "tests": 10, "benchmarks": 12}

# The files that call mmap: for files, and for fresh memory.
MAPPING = {ROOT / "csrc" / name for name in ("io/mapping.cpp", "memory/pages.cpp")}

# The files that open libraries, and the only ones that see a library's header.
OPENING = {ROOT / "csrc/binding/torch_bridge.cpp"}
LIBRARIES = {
    "zlib.h": ("container/inflate.cpp",),
    "libdeflate.h": ("container/checksum.cpp",),
    "simdjson.h": ("container/safetensors.cpp", "container/payloads.cpp"),
}

# Calls that make tensors.
MAKERS = re.compile(
    r"torch\.(empty|empty_strided|zeros|ones|full|eye|tensor|as_tensor|scalar_tensor|arange|rand|randn)"
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def code_of(path: Path) -> str:
    """Return C++ without comments and strings."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text(path), flags=re.DOTALL)


@functools.cache
def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text(path), flags=re.MULTILINE)


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "csrc").parts[0]


# ------------------------------------------------------------------------------- C++


def test_every_layer_has_files() -> None:
    assert {layer_of(path) for path in CORE} == set(LAYERS)


def test_arrows_point_down() -> None:
    wrong = []
    for path in CORE:
        for included in includes(path):
            folder, slash, _ = included.partition("/")
            if slash and folder in LAYERS:
                is_right = folder in LAYERS[layer_of(path)] and (ROOT / "csrc" / included).is_file()
                wrong += [] if is_right else [f"{name_of(path)} includes {included}"]
    assert not wrong


def may_include(path: Path, included: str) -> bool:
    """Return whether a file may see a header of torch, Python, a library or the operating system."""
    name, layer = str(path.relative_to(ROOT / "csrc")), layer_of(path)
    if included in LIBRARIES:
        return name in LIBRARIES[included]
    if included.startswith(("torch/", "c10/", "ATen/", "caffe2/")):
        return name == "bridge/bridge.cpp"
    if included == "Python.h" or included.startswith("pybind11/"):
        return layer in ("python", "binding", "bridge")
    is_systems = included.endswith(".h") and included.partition("/")[0] not in LAYERS
    return not is_systems or layer in ("memory", "io", "watch", "python", "binding")


def test_foreign_headers_are_included_in_their_room_only() -> None:
    pairs = [(path, included) for path in CORE for included in includes(path)]
    assert not [(name_of(path), included) for path, included in pairs if not may_include(path, included)]


def test_one_file_maps_files_and_one_maps_memory() -> None:
    calls = re.compile(r"\b(mmap64|mmap|mremap|munmap)\s*\(")
    assert not [path for path in CORE if path not in MAPPING and calls.search(code_of(path))]


def test_libraries_are_opened_in_three_files_only() -> None:
    calls = re.compile(r"\b(dlopen|dlmopen|dlsym)\s*\(")
    others = [path for path in CORE if path not in OPENING]
    assert not [path for path in others if "dlfcn.h" in includes(path) or calls.search(code_of(path))]


def test_header_opens_with_a_comment() -> None:
    headers = [path for path in CORE if path.suffix == ".h"]
    assert not [
        path for path in headers if not re.match(r"// .*^#pragma once", text(path), flags=re.M | re.S)
    ]


def test_every_source_is_built() -> None:
    listed = text(ROOT / "CMakeLists.txt")
    assert not [path for path in CORE if path.suffix != ".h" and name_of(path) not in listed]


def test_files_are_short() -> None:
    assert not [path for path in (*CORE, *PACKAGE) if len(text(path).splitlines()) > MAX_LINES]


# ------------------------------------------------------------------------------- Python


def module_of(path: Path) -> str:
    """Return the name of a module below ``zerocopy``."""
    parts = path.relative_to(ROOT / "python/zerocopy").with_suffix("").parts
    return ".".join(parts).removesuffix("__init__").strip(".")


def room_of(module: str) -> str:
    """Return the room of a module: its package, for ``share`` the package in that; a file at the top itself."""
    first, *others = module.split(".")
    return f"share.{others[0]}" if first == "share" and len(others) > 1 else first


MODULES = {module_of(path): path for path in PACKAGE}


def names_imported(tree_nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Yield the full names that imports name, each with the node of its import."""
    for node in tree_nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


@functools.cache
def imported(path: Path) -> set[str]:
    """Return the modules of zerocopy that a file imports when it runs, in functions too. Types alone do not count."""
    for_types = {
        inner
        for node in nodes(path)
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node, name in names_imported(nodes(path)):
        if node not in for_types and name.startswith("zerocopy."):
            below = name.removeprefix("zerocopy.")
            found.add(below if below in MODULES else below.rpartition(".")[0] or below)
    return found - {module_of(path)}


def test_every_room_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES if module} == set(FLOOR)


def test_imports_run_down() -> None:
    wrong = []
    for module, path in MODULES.items():
        for name in imported(path) & set(MODULES) if module else ():  # zerocopy itself has all public names
            here, there = room_of(module), room_of(name)
            if here != there and FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_the_extension_has_one_door() -> None:
    assert not [
        name for name, path in MODULES.items() if "_C" in imported(path) and room_of(name) != "_native"
    ]


def test_no_files_import_each_other() -> None:
    """Take away what imports nothing that is left, again and again: what remains imports itself."""
    left = {module: imported(path) & set(MODULES) for module, path in MODULES.items()}
    while free := {module for module, names in left.items() if not names}:
        left = {module: names - free for module, names in left.items() if module not in free}
    assert not left


def test_top_folders_hold_few_files() -> None:
    counts = {folder: len(list((ROOT / folder).glob("*.py"))) for folder in MAX_TOP_FILES}
    assert not {folder: count for folder, count in counts.items() if count > MAX_TOP_FILES[folder]}


def test_private_modules_of_torch_are_imported_in_one_place() -> None:
    """Private names that are not imported are in a list: test_private_names.py."""
    pairs = [(path, name) for path in PACKAGE for _, name in names_imported(nodes(path))]
    private = [(path, name) for path, name in pairs if re.match(r"torch\b.*\._(?!_)", name)]
    assert not [(name_of(path), name) for path, name in private if path.parent.name != "_torch"]


def test_new_tensors_name_their_device() -> None:
    """The program's default device may be any, such as "meta"."""
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in PACKAGE
        if path.name != "layouts.py"  # it asks which device that is
        for node in nodes(path)
        if isinstance(node, ast.Call) and MAKERS.fullmatch(dotted(node.func))
        if "device" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not wrong


def test_the_library_never_prints() -> None:
    """But the command line does, in one file."""
    prints = [
        f"{name_of(path)}:{node.lineno}"
        for path in PACKAGE
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and dotted(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert prints and not [place for place in prints if "zerocopy/cli/output.py" not in place]


def test_every_module_has_a_docstring() -> None:
    assert not [path for path in PACKAGE if not ast.get_docstring(nodes(path)[0])]


# ------------------------------------------------------------------------------- tests


def test_the_tests_that_documents_name_are_there() -> None:
    files = list(ROOT.glob("tests/**/*.py"))
    there = {path.name for path in files} | {name_of(path) for path in files} | {"test_serialization.py"}
    for path in files:
        there |= set(re.findall(r"^\s*def (test_\w+)", text(path), flags=re.MULTILINE))
    documents = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/reference/index.md"))
    for document in documents:
        named = set(re.findall(r"`(test_\w+(?:\.py)?|tests/[\w/]+\.py)`", text(document)))
        assert named <= there, f"{document.name} names {named - there}"


def test_the_names_of_test_modules_are_unique() -> None:
    """pytest imports them by these names; helper modules too are imported by theirs."""
    names = [path.name for path in ROOT.glob("tests/**/test_*.py")]
    names += [path.name for path in ROOT.glob("tests/support/*.py")]
    assert len(names) == len(set(names))
