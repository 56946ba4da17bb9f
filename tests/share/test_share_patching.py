"""``zerocopy.share.patch_all``: what is replaced, when, and that it goes without a trace. Nothing is kept here."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child

import zerocopy
from zerocopy import share
from zerocopy.share import loading

MODULE = '''
"""A library."""
from math import floor

def function(*args, flag=False):
    """Docstring."""
    return "function", args, flag, function.calls()

function.calls = lambda: 7

class Base:
    @classmethod
    def make(cls, *args, **kwargs):
        return cls.__name__, args, kwargs

    @staticmethod
    def static(value):
        return "static", value

    def method(self, value):
        return "method", value

class Derived(Base):
    """A class that has all from its base."""

class Overriding(Base):
    @classmethod
    def make(cls, name):
        return super().make("twice " + name)

def calls_others(value):
    return function(value), Base.make(value)
'''
LINES = """
# comments, and empty lines

mine_{0}::function      # behind a line too
mine_{0}::Base.make
mine_{0}::Base.static
mine_{0}::Base.method
mine_{0}::Derived.static
mine_{0}::floor
mine_{0}::calls_others
mine_{0}::absent
mine_{0}::Absent.make
mine_{0}::Base
absent_{0}::function
builtins::str.upper
"""


class Library:
    """A module of its own for each test, and a configuration that names what is in it."""

    count = 0

    def __init__(self, folder: Path) -> None:
        Library.count += 1
        self.name = f"mine_{Library.count}"
        (folder / f"{self.name}.py").write_text(MODULE)
        os.utime(folder / f"{self.name}.py", (0, 0))  # not while the program runs
        self.config = folder / "share.cfg"
        self.config.write_text(LINES.format(Library.count))

    @property
    def module(self) -> Any:
        return __import__(self.name)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Library(tmp_path)
    share.unpatch_all()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have calls answered by whoever the function is in a process that is not patched; return what was asked."""
    found: list[Any] = []

    def load(fn: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found.append((fn, args, kwargs))
        return "served", fn, args, kwargs

    monkeypatch.setattr(loading, "load_as_program", load)
    return found


def snapshot(module: Any) -> list[dict[str, Any]]:
    return [dict(vars(thing)) for thing in (module, module.Base, module.Derived, module.Overriding)]


def test_every_kind_of_function(library: Library, asked: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    module = library.module
    before, sub = snapshot(module), module.Derived()
    plain = module.function, module.Base.__dict__["make"]
    share.patch_all(library.config)
    share.patch_all(library.config)
    assert module.function(1, flag=2) == ("served", module.function, (1,), {"flag": 2})
    assert module.Derived.make(1, b=2) == ("served", module.Derived.make, (1,), {"b": 2})
    assert module.Base.static(1)[2:] == module.Derived.static(1)[2:] == ((1,), {})
    assert sub.method(3) == ("served", module.Base.method, (sub, 3), {})
    assert module.floor(2.5)[2] == (2.5,)
    # They are what they were, for whoever looks.
    assert isinstance(vars(module.Base)["make"], classmethod)
    assert isinstance(vars(module.Base)["static"], staticmethod)
    assert inspect.signature(module.function) == inspect.signature(plain[0])
    assert module.function.__doc__ == "Docstring." and module.function.calls() == 7
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 4, said  # absent, Absent, a class, str
    assert "absent_" not in "".join(said)

    kept = module.function, module.Base.make
    share.unpatch_all()
    share.unpatch_all()
    assert [*map(list, snapshot(module))] == [*map(list, before)]
    for now, then in zip(snapshot(module), before, strict=True):
        assert all(now[name] is then[name] for name in then)
    del asked[:]
    assert kept[0](1) == ("function", (1,), False, 7) and kept[1](1) == ("Base", (1,), {})
    assert not asked


def test_a_method_that_a_class_calls_of_its_base(library: Library, asked: list[Any]) -> None:
    """``super().make`` runs the base's function wherever it runs, not once more the class's own."""
    module = library.module
    share.patch_all(library.config)
    _, function, args, kwargs = module.Overriding.make("x")
    assert (args, kwargs) == (("twice x",), {})
    share.unpatch_all()
    again = pickle.loads(pickle.dumps(function))
    assert again("twice x") == ("Overriding", ("twice x",), {})
    assert again.__qualname__ == "Overriding.make" and again.__module__ == module.__name__


def test_call_that_cannot_be_kept_goes_to_the_original(
    library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The original is called with the very arguments, and what that calls in turn is a plain call."""
    module = library.module
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").touch()
    share.patch_all(library.config)
    argument = object()
    caplog.clear()
    assert module.calls_others(argument) == (("function", (argument,), False, 7), ("Base", (argument,), {}))
    assert module.Overriding.make("x") == ("Overriding", ("twice x",), {})
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"{module.__name__}.calls_others is called here, and nothing is kept: ")
    assert second.startswith(f"{module.__name__}.Overriding.make is called here")
    with pytest.raises(TypeError) as caught:
        module.calls_others()
    assert caught.value.__context__ is None, "what the original raises is as it raises it"


def test_program_that_finds_nothing_keeps_its_own_object(
    library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And later ones get a copy: one for each way in which programs have changed the module."""
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))
    module = library.module
    made: list[Any] = []
    module.function.calls = made.append
    library.config.write_text(f"{library.name}::keep")
    module.__dict__["BASE"] = torch.arange(5000.0)
    exec("def keep(n):\n    found = {'w': BASE * n}\n    return found", module.__dict__)
    share.patch_all(library.config)
    for base in (1.0, 2.0, 1.0, 2.0):
        with monkeypatch.context() as patch:
            patch.setitem(module.__dict__, "BASE", torch.full((5000,), base))
            assert module.keep(3)["w"].unique().tolist() == [3 * base]
    assert len(share.status()) == 2


def test_a_module_imported_later(library: Library, asked: list[Any]) -> None:
    finders = sys.meta_path[:]
    share.patch_all(library.config)
    assert library.name not in sys.modules
    assert library.module.function(1)[0] == "served"
    share.unpatch_all()
    assert sys.meta_path == finders
    assert library.module.function(1)[0] == "function"


def test_not_imported_before_it_is_unpatched(library: Library, asked: list[Any]) -> None:
    share.patch_all(library.config)
    share.unpatch_all()
    assert library.module.function(1)[0] == "function"


def test_files_by_name_only(tmp_path: Path, asked: list[Any]) -> None:
    """A file object's position is the caller's: ``torch.load`` of one stays here."""
    path = tmp_path / "a.pt"
    torch.save([1], path)
    original = torch.load
    share.patch_all()
    try:
        assert torch.load is torch.serialization.load is not original
        assert torch.load(path)[0] == torch.load(weights_only=True, f=str(path))[0] == "served"
        with path.open("rb") as file:
            assert torch.load(file) == [1] and file.tell() > 0
        assert len(asked) == 2 and asked[0] == (torch.load, (path,), {})
    finally:
        share.unpatch_all()
    assert torch.load is torch.serialization.load is original


def test_any_order_with_patch(tmp_path: Path, asked: list[Any]) -> None:
    torch.save([1], tmp_path / "a.pt")
    original = torch.load
    on = {"patch": zerocopy.patch, "share": share.patch_all}
    off = {"patch": zerocopy.unpatch, "share": share.unpatch_all}
    for first in on:
        for second in on:
            for last in ("patch", "share"):
                on[first]()
                on[second]()
                off[last]()
                answer = torch.load(tmp_path / "a.pt")
                off["share" if last == "patch" else "patch"]()
                assert torch.load is torch.serialization.load is original, (first, second, last)
                assert (answer[0] == "served") == ("share" in (first, second) and last == "patch")
    with zerocopy.patched():
        share.patch_all()
        assert torch.load(tmp_path / "a.pt")[0] == "served"
    assert torch.load(tmp_path / "a.pt")[0] == "served"
    share.unpatch_all()
    assert torch.load is original


@pytest.mark.parametrize("line", ["torch.load", "torch::", "::load", "a b::c", "a::b::c", "a::b()"])
def test_lines_that_name_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / "share.cfg").write_text(f"# first\n{line}\n")
    original = torch.load
    with pytest.raises(ValueError, match=r"share\.cfg, line 2: "):
        share.patch_all(tmp_path / "share.cfg")
    with pytest.raises(FileNotFoundError):
        share.patch_all(tmp_path / "absent.cfg")
    assert torch.load is original


def test_switched_off(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    function, load = library.module.function, torch.load
    monkeypatch.setenv("ZEROCOPY_DISABLE", "1")
    share.patch_all(library.config)
    assert library.module.function is function and torch.load is load


# Libraries of the same outside as the real ones: where names are defined, and where else they are known.
LIBRARIES = {
    "transformers/__init__.py": """
        import importlib
        def __getattr__(name):
            if name != "pipeline": raise AttributeError(name)
            return importlib.import_module("transformers.pipelines").pipeline
        """,
    "transformers/modeling_utils.py": "PreTrainedModel",
    "transformers/tokenization_utils_base.py": "PreTrainedTokenizerBase",
    "transformers/models/auto/processing_auto.py": "AutoProcessor",
    "transformers/processing_utils.py": "ProcessorMixin",
    "transformers/pipelines/__init__.py": "def pipeline(*args): return 'plain'",
    "diffusers/loaders/single_file.py": "FromSingleFileMixin",
    "diffusers/loaders/single_file_model.py": "FromOriginalModelMixin",
    "diffusers/loaders/controlnet.py": "FromOriginalControlNetMixin",
    "diffusers/loaders/autoencoder.py": "FromOriginalVAEMixin",
    "diffusers/models/modeling_utils.py": "ModelMixin",
    "diffusers/pipelines/pipeline_utils.py": "DiffusionPipeline",
    "diffusers/schedulers/scheduling_utils.py": "SchedulerMixin",
    "open_clip/__init__.py": "from open_clip.factory import create_model_and_transforms",
    "open_clip/factory.py": "def create_model_and_transforms(*args): return 'plain'",
    "torchvision/models/__init__.py": "from torchvision.models.vgg import vgg16, vgg19",
    "torchvision/models/vgg.py": "def vgg16(*args): return 'plain'\n\ndef vgg19(*args): return 'plain'",
    "safetensors/__init__.py": "",
    "safetensors/torch.py": "def load_file(*args): return 'plain'",
}
CLASS = """
class {0}:
    @classmethod
    def from_pretrained(cls, *args): return "plain"
    from_single_file = from_pretrained
"""
CHECK = """
import sys
sys.path.insert(0, sys.argv[1])
import zerocopy
share = zerocopy.share
share.patch_all()
assert not {"torch", "transformers", "diffusers", "safetensors"} & set(sys.modules)
from zerocopy.share import loading
loading.load_as_program = lambda fn, original, args, kwargs: "served"

from torchvision.models import vgg16, vgg19
from open_clip import create_model_and_transforms
from safetensors.torch import load_file
import torch, transformers, torchvision.models, open_clip
from zerocopy.share import loading
loading.load_as_program = lambda fn, original, args, kwargs: "served"
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.models.auto.processing_auto import AutoProcessor
from transformers.processing_utils import ProcessorMixin
from diffusers.loaders.single_file import FromSingleFileMixin
from diffusers.loaders.single_file_model import FromOriginalModelMixin
from diffusers.loaders.controlnet import FromOriginalControlNetMixin
from diffusers.loaders.autoencoder import FromOriginalVAEMixin
from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.schedulers.scheduling_utils import SchedulerMixin

functions = [vgg16, vgg19, create_model_and_transforms, load_file, transformers.pipeline, torch.load, torch.jit.load,
             torchvision.models.vgg16, open_clip.create_model_and_transforms]
functions += [cls.from_pretrained for cls in (PreTrainedModel, PreTrainedTokenizerBase, AutoProcessor, ProcessorMixin,
              ModelMixin, DiffusionPipeline, SchedulerMixin)]
functions += [cls.from_single_file for cls in (FromSingleFileMixin, FromOriginalModelMixin,
              FromOriginalControlNetMixin, FromOriginalVAEMixin)]
assert [function("a") for function in functions] == ["served"] * len(functions)
share.unpatch_all()
assert PreTrainedModel.from_pretrained("a") == transformers.pipeline("a") == vgg16("a") == load_file("a") == "plain"
"""


@pytest.mark.slow("it starts a Python that has not imported torch")
def test_the_known_libraries(tmp_path: Path, child: Child) -> None:
    """Those of the list, whether they are there or not, and none of them is imported for it."""
    for name, text in LIBRARIES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        packages = list(path.relative_to(tmp_path).parents)[:-1]
        for package in packages:  # or an installed one would be found before
            (tmp_path / package / "__init__.py").touch()
        path.write_text(CLASS.format(text) if text.isidentifier() else textwrap.dedent(text))
    done = child(CHECK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
