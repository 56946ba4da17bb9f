"""The installed package as a whole: what importing it does, its public names, its type information."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Any

import pytest
import torch
from conftest import Child
from fork_server import ForkServer

import zerocopy
from zerocopy import _C, _core

IMPORT = """
import sys, os, threading, signal, logging, warnings, io
import builtins, copyreg, pickle, torch, torch.serialization, torch.storage, torch._utils
watched = [torch, torch.serialization, torch.storage, torch._utils, torch.Tensor, torch.UntypedStorage,
           torch.nn.Module, pickle, copyreg, builtins, io, os, sys]
ignored = {"__builtins__", "last_traceback", "zerocopy"}
def snapshot():
    names = [{name: id(v) for name, v in vars(thing).items() if name not in ignored} for thing in watched]
    registries = [list(torch.serialization._package_registry), dict(copyreg.dispatch_table)]
    settings = [torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()]
    process = [len(os.listdir("/proc/self/task")), threading.enumerate(), sorted(os.listdir("/proc/self/fd")),
               [signal.getsignal(n) for n in range(1, 32)], os.getcwd(), dict(os.environ), os.umask(0o22)]
    streams = [sys.stdout, sys.stderr, sys.excepthook, sys.path[:], sys.meta_path[:], sys.path_hooks[:]]
    reports = [logging.root.handlers[:], logging.root.level, warnings.filters[:], warnings.showwarning]
    return names, registries, settings, process, streams, reports
snapshot()
before = snapshot()
import zerocopy
if sys.argv[1] == "every name":
    for name in zerocopy.__all__:
        getattr(zerocopy, name)
after = snapshot()
for old, new, thing in zip(before[0], after[0], watched):
    assert old == new, (thing, {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)})
for old, new in zip(before[1:], after[1:]):
    assert old == new, (old, new)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def forked_with_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """Run Python code in a process that was forked with torch imported, but not zerocopy."""
    made = ForkServer(tmp_path_factory.mktemp("fork_server"), has_zerocopy=False)
    yield made.run
    made.close()


@pytest.mark.parametrize("names", ["no name", "every name"])
def test_import_changes_nothing(forked_with_torch: Child, names: str) -> None:
    done = forked_with_torch(IMPORT, names)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_import_beside_torch_imports_only_what_load_needs(forked_with_torch: Child) -> None:
    done = forked_with_torch(
        "import torch, zerocopy, sys; print(*(name for name in sys.modules if name[:9] == 'zerocopy.'))"
    )
    packages = {name.split(".")[1] for name in done.stdout.split()}
    assert "loading" in packages, done.stderr
    assert not packages & {
        "share",
        "distributed",
        "converting",
        "saving",
        "launch",
        "cli",
        "gds",
        "patching",
        "jit",
    }


def test_import_of_share_pauses_the_collector(forked_with_torch: Child) -> None:
    """A full collection walks through all of torch's objects: 75 ms with PyTorch 2.13."""
    done = forked_with_torch(
        """
import gc, torch, zerocopy
begun = []
gc.callbacks.append(lambda phase, _: begun.append(phase))
gc.set_threshold(100)
from zerocopy import share
print(len(begun), gc.isenabled())
"""
    )
    count, is_enabled = done.stdout.split()
    assert int(count) < 20 and is_enabled == "True", done.stderr


def test_import_alone_suffices(child: Child) -> None:
    """Without torch imported first, whose libraries the native part needs."""
    done = child("import zerocopy; print(zerocopy.untyped_storage(bytearray(3)).nbytes())")
    assert done.stdout == "3\n", done.stderr


@pytest.mark.parametrize("module", ["lazy.checkpoint", "errors", "gds", "jit", "share"])
def test_any_module_can_be_the_first_to_be_imported(forked_with_torch: Child, module: str) -> None:
    done = forked_with_torch(f"import zerocopy.{module}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (zerocopy.explain, ["path"]),
        (zerocopy.lazy_load, ["path", "dtype", "device", "keys", "prefix"]),
        (zerocopy.open, ["path", "mode"]),
        (zerocopy.jit.load, ["path_or_buffer", "map_location"]),
        (zerocopy.load, ["f", "map_location", "pickle_module", "weights_only", "mmap", "backend", "mode"]),
        (zerocopy.load_model, ["module", "path", "strict", "assign", "device"]),
        (zerocopy.prefetch, ["path_or_obj", "block", "progress"]),
        (zerocopy.save, ["obj", "f", "alignment", "checksum", "progress", "wait"]),
        (zerocopy.convert, ["src", "dst", "dtype", "max_shard_size", "keep", "progress"]),
        (zerocopy.storage_offsets, ["path"]),
        (zerocopy.Writer, ["path", "alignment"]),
        (zerocopy.gds.save, ["state_dict", "path", "require"]),
        (zerocopy.gds.load, ["path", "device", "require"]),
        (zerocopy.share.patch_all, ["config"]),
    ],
)
def test_names_of_parameters(function: Any, names: list[str]) -> None:
    assert [name for name in inspect.signature(function).parameters if name in names] == names


def test_import_leaves_torch_to_the_program(child: Child) -> None:
    done = child("import sys, zerocopy; print(zerocopy.__version__, 'torch' in sys.modules)")
    assert done.stdout == f"{zerocopy.__version__} False\n", done.stderr


def test_import_without_torch_says_what_to_install(child: Child) -> None:
    done = child(
        """
import sys
class WithoutTorch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)
sys.meta_path.insert(0, WithoutTorch())
import zerocopy
for name in ("load", "Checkpoint", "jit"):
    try:
        getattr(zerocopy, name)
    except ModuleNotFoundError as error:
        print(name, error.name, sys.executable in str(error), str(error).partition(": ")[2])
"""
    )
    advice = "install PyTorch there, for example by pip install torch, or on Debian apt install python3-torch"
    expected = [f"{name} torch True {advice}" for name in ("load", "Checkpoint", "jit")]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize(("has_lock", "code"), [(True, 0), (False, 1)])
def test_import_in_a_free_threaded_interpreter_needs_the_lock(
    child: Child, has_lock: bool, code: int
) -> None:
    done = child(f"import sys; sys._is_gil_enabled = lambda: {has_lock}; import zerocopy")
    assert done.returncode == code, done.stderr
    refusal = done.stderr.splitlines()[-1:]
    assert (
        not refusal if has_lock else "ImportError: zerocopy needs the global interpreter lock" in refusal[0]
    )


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        zerocopy.nonsense  # noqa: B018
    assert set(zerocopy.__all__) <= set(dir(zerocopy))


def test_loading_says_nothing(forked_with_torch: Child, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    done = forked_with_torch("import sys, zerocopy; zerocopy.load(sys.argv[1])", tmp_path / "a.pt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", zerocopy.__all__)
def test_public_names(name: str) -> None:
    thing = getattr(zerocopy, name)
    assert inspect.getdoc(thing)
    home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
    assert home.split(".")[0] == "zerocopy"


@pytest.mark.parametrize("package", [zerocopy, zerocopy.share], ids=lambda package: package.__name__)
def test_dir_shows_public_names_only(package: ModuleType) -> None:
    assert [name for name in dir(package) if not name.startswith("_")] == sorted(package.__all__)
    assert [name for name in dir(package) if name.startswith("_") and not name.endswith("__")] == []


def test_all_has_every_function_and_class_of_the_package() -> None:
    for name in zerocopy.__all__:
        getattr(zerocopy, name)
    imported = {name for name, value in vars(zerocopy).items() if not inspect.ismodule(value)}
    assert {name for name in imported if not name.startswith("_")} <= set(zerocopy.__all__)


def test_help_describes_public_names_only() -> None:
    page = pydoc.plain(pydoc.render_doc(zerocopy))
    described = re.findall(r"^ {4}(?:class )?(\w+)\(", page, flags=re.MULTILINE)
    assert set(described) <= set(zerocopy.__all__)
    assert {"load", "Checkpoint", "open"} <= set(described)


@pytest.mark.parametrize("package", [zerocopy, zerocopy.share], ids=lambda package: package.__name__)
def test_stub_of_a_package_has_its_public_names(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    names = [
        alias.asname
        for line in tree.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if getattr(importlib.import_module(str(line.module)), alias.name) is getattr(package, alias.name)
    ]
    assert sorted(set(names) - {"__version__"}) == sorted(package.__all__)


def test_version() -> None:
    assert zerocopy.__version__ == importlib.metadata.version("zerocopy-torch")


def test_errors() -> None:
    assert issubclass(zerocopy.FormatError, (zerocopy.Error, ValueError))
    assert issubclass(zerocopy.FormatError, ValueError) and issubclass(zerocopy.FormatError, zerocopy.Error)
    assert issubclass(zerocopy.UnsupportedError, NotImplementedError)
    assert issubclass(zerocopy.UnsupportedError, zerocopy.Error)
    assert not issubclass(zerocopy.UnsupportedError, zerocopy.FormatError)


def test_type_information_is_installed() -> None:
    installed = Path(zerocopy.__file__).parent
    assert (installed / "py.typed").is_file() and (installed / "_C.pyi").is_file()
    assert (installed / "_core.pyi").is_file()


# ----------------------------------------------------------- the stubs against the built modules

NATIVE = (_C, _core)


def stub(module: ModuleType) -> dict[str, ast.stmt]:
    name = module.__name__.rpartition(".")[2]
    tree = ast.parse((Path(zerocopy.__file__).parent / f"{name}.pyi").read_text())
    return dict(_definitions(tree.body))


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node


def public_names(thing: object) -> set[str]:
    of_every_record = {"n_fields", "n_sequence_fields", "n_unnamed_fields"}
    return {name for name in vars(thing) if not name.startswith("_")} - of_every_record


def arguments_in_docstring(function: object) -> list[str]:
    """Return a native function's argument names, from the signature that begins a pybind11 docstring."""
    signature = inspect.getdoc(function).splitlines()[0]
    names = re.findall(r"[(,]\s*(\w+): ", signature)
    return [name for name in names if name != "self"]


def arguments_in_stub(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in node.args.args if argument.arg != "self"]


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


@pytest.mark.parametrize("module", NATIVE)
def test_stub_has_the_names_of_the_module(module: ModuleType) -> None:
    assert set(stub(module)) == public_names(module)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in NATIVE for name in sorted(public_names(module))]
)
def test_stub_has_the_arguments_of_the_module(module: ModuleType, name: str) -> None:
    node, thing = stub(module)[name], getattr(module, name)
    if isinstance(node, ast.FunctionDef):
        assert arguments_in_stub(node) == arguments_in_docstring(thing)
        return
    methods = dict(_definitions(node.body))
    assert {method for method in methods if method[0] != "_"} == public_names(thing)
    for method, definition in methods.items():
        assert isinstance(definition, ast.FunctionDef)
        if is_property(definition):
            assert isinstance(vars(thing)[method], property | MemberDescriptorType)
        else:
            assert arguments_in_stub(definition) == arguments_in_docstring(getattr(thing, method)), method


# ----------------------------------------------------------------------------- as it is built


def test_source_distribution_has_all_that_a_build_reads(tmp_path: Path) -> None:
    """It is built and unpacked; CMake, which names every source, generates a build of it."""
    source = Path(__file__).parents[2]
    copy = tmp_path / "checkout"
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=source, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("not a checkout of git")
    for name in filter(None, tracked.stdout.decode().split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, copy / name)
    build = "import setuptools.build_meta as meta; meta.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    (packed,) = (copy / "dist").iterdir()
    shutil.unpack_archive(packed, tmp_path)
    unpacked = tmp_path / packed.name.removesuffix(".tar.gz")
    for folder in ("csrc", "cmake", "docs", "python/zerocopy"):
        for path in (copy / folder).rglob("*"):
            if path.is_file():
                there = unpacked / path.relative_to(copy)
                assert there.read_bytes() == path.read_bytes(), path
    # Ninja, as setup.py: a bare system has no make.
    build = ["-S", unpacked, "-B", tmp_path / "build", "-G", "Ninja"]
    configure = ["cmake", *build, f"-DPython_EXECUTABLE={sys.executable}"]
    done = subprocess.run(configure, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
