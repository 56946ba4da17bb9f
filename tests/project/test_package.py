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
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Any

import pytest
import torch
from conftest import Child

import zerocopy
from zerocopy import _C, _core
from zerocopy.loading.explain import StorageExplanation

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


def test_import_leaves_torch_to_the_program_and_suffices_without(child: Child) -> None:
    """Torch's libraries, which the native part needs, are loaded at the first use."""
    done = child(
        """
import sys, zerocopy
print(zerocopy.__version__, 'torch' in sys.modules)
print(zerocopy.untyped_storage(bytearray(3)).nbytes())
"""
    )
    assert done.stdout == f"{zerocopy.__version__} False\n3\n", done.stderr


def test_any_module_can_be_the_first_to_be_imported(forked_with_torch: Child) -> None:
    for module in ("aoti", "lazy.checkpoint", "errors", "export", "gds", "jit", "numpy", "share"):
        done = forked_with_torch(f"import zerocopy.{module}")
        assert (done.returncode, done.stderr) == (0, ""), module


PARAMETERS = [
    (zerocopy.aoti.load, ["package", "weights"]),
    (zerocopy.explain, ["path"]),
    (zerocopy.export.load, ["f"]),
    (zerocopy.lazy_load, ["path", "dtype", "device", "keys", "prefix"]),
    (zerocopy.open, ["path", "mode"]),
    (zerocopy.jit.load, ["path_or_buffer", "map_location"]),
    (zerocopy.load, ["f", "map_location", "pickle_module", "weights_only", "mmap", "backend", "mode"]),
    (zerocopy.load_model, ["module", "path", "strict", "assign", "device", "map_location"]),
    (zerocopy.numpy.open, ["path", "mode", "view", "strict"]),
    (zerocopy.prefetch, ["path_or_obj", "block", "progress"]),
    (zerocopy.save, ["obj", "f", "alignment", "checksum", "progress", "wait"]),
    (zerocopy.convert, ["src", "dst", "dtype", "max_shard_size", "keep", "progress"]),
    (zerocopy.storage_offsets, ["path"]),
    (zerocopy.Writer, ["path", "alignment"]),
    (zerocopy.gds.save, ["state_dict", "path", "require"]),
    (zerocopy.gds.load, ["path", "device", "require"]),
    (zerocopy.share.patch_all, ["config"]),
]


def test_names_and_order_of_parameters() -> None:
    for function, names in PARAMETERS:
        parameters = inspect.signature(function).parameters
        assert [name for name in parameters if name in names] == names, function


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


def test_import_in_a_free_threaded_interpreter_needs_the_lock(child: Child) -> None:
    for has_lock in (True, False):
        done = child(f"import sys; sys._is_gil_enabled = lambda: {has_lock}; import zerocopy")
        assert done.returncode == (0 if has_lock else 1), done.stderr
    assert "ImportError: zerocopy needs the global interpreter lock" in done.stderr.splitlines()[-1]


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        zerocopy.nonsense  # noqa: B018
    assert set(zerocopy.__all__) <= set(dir(zerocopy))


def test_loading_says_nothing(forked_with_torch: Child, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    done = forked_with_torch("import sys, zerocopy; zerocopy.load(sys.argv[1])", tmp_path / "a.pt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_public_names_are_described_and_of_zerocopy() -> None:
    for name in zerocopy.__all__:
        thing = getattr(zerocopy, name)
        home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        assert inspect.getdoc(thing) and home.split(".")[0] == "zerocopy", name


@pytest.mark.parametrize("package", [zerocopy, zerocopy.share], ids=lambda package: package.__name__)
def test_dir_and_stub_of_a_package_have_its_public_names(package: ModuleType) -> None:
    shown = [name for name in dir(package) if not (name.startswith("__") and name.endswith("__"))]
    assert shown == sorted(package.__all__)
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    names = [
        alias.asname
        for line in tree.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if getattr(importlib.import_module(str(line.module)), alias.name) is getattr(package, alias.name)
    ]
    assert sorted(set(names) - {"__version__"}) == sorted(package.__all__)


def test_all_has_every_function_and_class_of_the_package() -> None:
    imported = {name for name, value in vars(zerocopy).items() if not inspect.ismodule(value)}
    assert {name for name in imported if not name.startswith("_")} <= set(zerocopy.__all__)


def test_help_describes_public_names_only() -> None:
    page = pydoc.plain(pydoc.render_doc(zerocopy))
    described = re.findall(r"^ {4}(?:class )?(\w+)\(", page, flags=re.MULTILINE)
    assert set(described) <= set(zerocopy.__all__)
    assert {"load", "Checkpoint", "open"} <= set(described)


def test_version_is_that_of_the_distribution() -> None:
    assert zerocopy.__version__ == importlib.metadata.version("zerocopy-torch")


def test_errors_are_builtin_errors_too() -> None:
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


def definitions(body: list[ast.stmt]) -> dict[str, Any]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def stub(module: ModuleType) -> dict[str, Any]:
    name = module.__name__.rpartition(".")[2]
    return definitions(ast.parse((Path(zerocopy.__file__).parent / f"{name}.pyi").read_text()).body)


def public_names(thing: object) -> set[str]:
    of_every_record = {"n_fields", "n_sequence_fields", "n_unnamed_fields"}
    return {name for name in vars(thing) if not name.startswith("_")} - of_every_record


def arguments_in_docstring(function: object) -> list[str]:
    """Return a native function's argument names, from the signature that begins a pybind11 docstring."""
    signature = inspect.getdoc(function).splitlines()[0]
    names = re.findall(r"[(,]\s*(\w+): ", signature)
    return [name for name in names if name != "self"]


def is_described(thing: object, node: ast.FunctionDef) -> bool:
    """Return whether a stub has the arguments of a function, or is of a property."""
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return isinstance(thing, property | MemberDescriptorType)
    names = [argument.arg for argument in node.args.args if argument.arg != "self"]
    return names == arguments_in_docstring(thing)


@pytest.mark.parametrize("module", NATIVE)
def test_stub_has_the_names_and_arguments_of_the_module(module: ModuleType) -> None:
    assert set(stub(module)) == public_names(module)
    wrong = []
    for name, node in stub(module).items():
        thing = getattr(module, name)
        if isinstance(node, ast.FunctionDef):
            wrong += [] if is_described(thing, node) else [name]
            continue
        methods = definitions(node.body)
        if {method for method in methods if method[0] != "_"} != public_names(thing):
            wrong.append(name)
        for method, definition in methods.items():
            is_property = isinstance(vars(thing).get(method), property | MemberDescriptorType)
            found = vars(thing)[method] if is_property else getattr(thing, method)
            wrong += [] if is_described(found, definition) else [f"{name}.{method}"]
    assert not wrong


def test_named_records_have_the_fields_of_their_stubs_in_order(tmp_path: Path) -> None:
    records = {_C: [_C.TensorEntry, _C.StoragePlacement], _core: [_core.ZipRecord, _core.StorageRecord]}
    for module, classes in records.items():
        for record in classes:
            body = stub(module)[record.__name__].body
            named = tuple(node.name for node in body if isinstance(node, ast.FunctionDef))
            assert named == record.__match_args__
    assert StorageExplanation._fields == (*_C.StoragePlacement.__match_args__, "names")
    torch.save({"weight": torch.ones(3)}, tmp_path / "a.pt")
    with (tmp_path / "a.pt").open("rb") as file:
        record = _core.zip_records(file.fileno(), "")[0]
    with pytest.raises(AttributeError):
        record.size = 0  # type: ignore[misc]


# ----------------------------------------------------------------------------- as it is built


@pytest.mark.slow("builds a source distribution, and configures a build of it")
def test_source_distribution_has_all_that_a_build_reads(tmp_path: Path) -> None:
    """It is built and unpacked; CMake, which names every source, generates a build of it."""
    source = Path(__file__).parents[2]
    copy = tmp_path / "checkout"
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=source, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("not a checkout of git")
    for name in tracked.stdout.decode().split("\0"):
        if not (source / name).is_file():  # the last name is empty, and a change may delete files
            continue
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
