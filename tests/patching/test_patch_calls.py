"""A patched ``torch.load`` means what it means in the running release: arguments, environment, errors, warnings."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import itertools
import mmap
import os
import pickle
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import Saver, goes_to_stock, lies_in_mapping, name_of, saved_bytes, stock_load
from equality import assert_same

import zerocopy
from zerocopy.cli import main
from zerocopy.patching.torch_load import RefusedError

HAS_SAFE_DEFAULT = hasattr(torch.serialization, "_default_to_weights_only")
TAKES_MMAP = "mmap" in (torch.load.__kwdefaults__ or {})
STATE = {"weight": torch.arange(6.0).view(2, 3), "step": 7}
LARGE = {"weight": torch.arange(20_000.0)}
BOTH = ({"weights_only": True}, {"weights_only": False})


def outcome(load: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the value, or the type and first line of the error; and the warnings' categories and first lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: tuple[Any, ...] = ("value", load())
        except Exception as error:
            result = ("error", type(error), (str(error).splitlines() or [""])[0])
    said = {
        (w.category, str(w.message).splitlines()[0]) for w in caught if "TypedStorage" not in str(w.message)
    }
    return *result, said


def check(load: Callable[[], Any]) -> tuple[Any, ...]:
    """Assert that `load` comes to the same stock and patched; return that."""
    stock = outcome(load)
    with zerocopy.patched():
        ours = outcome(load)
    assert stock[0] == ours[0], (stock, ours)
    if stock[0] == "value":
        assert_same(ours[1], stock[1])
        assert ours[2:] == stock[2:]
    elif issubclass(ours[1], RefusedError):  # instead of the words of a release that is not asked
        assert not HAS_SAFE_DEFAULT and issubclass(ours[1], (stock[1], RefusedError)), (stock, ours)
    else:
        assert ours[1:] == stock[1:]
    return ours


def check_all(cases: Iterable[tuple[Any, Callable[[], Any]]]) -> None:
    """Check each of several named calls, and name all that differ."""
    offenders = []
    for name, load in cases:
        try:
            check(load)
        except AssertionError as error:
            offenders.append(f"{name}: {error}")
    assert not offenders, "\n".join(offenders)


def source(path: Path, as_file: bool) -> Any:
    return io.BytesIO(path.read_bytes()) if as_file else str(path)  # all that 2.2 maps


# --------------------------------------------------------------------------- weights_only


def test_weights_only_and_environment_mean_what_they_mean_to_torch(
    save: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    forces = [None, "1", "y", "yes", "true", "True", "0", "no"]
    files = [save(STATE, "safe.pt"), save({"config": argparse.Namespace(x=1)}, "other.pt")]
    with monkeypatch.context() as context, contextlib.suppress(pickle.UnpicklingError):
        context.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "True")
        stock_load(files[1])
        forces.remove("True")  # some releases compare with case
    for force, force_no in itertools.product(forces, [None, "1"]):
        with monkeypatch.context() as context:
            for name, value in (("", force), ("_NO", force_no)):
                if value is not None:
                    context.setenv(f"TORCH_FORCE{name}_WEIGHTS_ONLY_LOAD", value)
            check_all(
                ((force, force_no, path.name, options), lambda p=path, o=options: torch.load(p, **o))
                for path in files
                for options in ({}, {"weights_only": None}, *BOTH)
            )


def test_class_that_the_user_allows_is_loaded(save: Saver) -> None:
    path = save({"config": argparse.Namespace(x=1)})
    with zerocopy.patched(), zerocopy.safe_globals([argparse.Namespace]):
        assert torch.load(path, weights_only=True) == {"config": argparse.Namespace(x=1)}
    if hasattr(torch.serialization, "safe_globals"):
        with torch.serialization.safe_globals([argparse.Namespace]):
            check(lambda: torch.load(path, weights_only=True))


# ------------------------------------------------------------------------------ arguments


ARGUMENTS: list[dict[str, Any]] = [
    {"pickle_module": pickle},
    {"encoding": "latin1"},
    {"encoding": 1},
    {"errors": 1},
    {"fix_imports": 1},
    {"nonsense": 1},
    {"mmap": True},
    {"mmap": False},
    {"mmap": None},
    {"map_location": "cpu"},
    {"map_location": torch.device("cpu")},
    {"map_location": {"cpu": "cpu"}},
    {"map_location": lambda storage, tag: storage},
    {"map_location": lambda storage, tag: None},
    {"map_location": "meta"},
    {"map_location": 5},
    {"map_location": b"cpu"},
    {"map_location": "nowhere"},
    {"map_location": "cuda"},
    {"map_location": {"cpu": "cuda:1"}},
]


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("new_format", [True, False])
def test_arguments_mean_what_they_mean_to_torch(as_file: bool, new_format: bool, save: Saver) -> None:
    path = save(STATE, _use_new_zipfile_serialization=new_format)
    check_all(
        (f"{arguments} {more}", lambda a=arguments, m=more: torch.load(source(path, as_file), **m, **a))
        for arguments in ARGUMENTS
        for more in ({}, *BOTH)
        if new_format or arguments != {"mmap": True}  # zerocopy maps the old format, too
    )


def test_calls_without_a_file_fail_as_those_of_torch(tmp_path: Path) -> None:
    others = (3, None, b"/nowhere", [], memoryview(b""), "/nowhere.pt", "/", "", "nul\0")
    check_all(
        (name_of(f), lambda f=f, options=options: torch.load(f, **options))
        for f in others
        for options in BOTH
    )
    check(lambda: torch.load())
    check(lambda: torch.load("a", "b", "c", "d"))
    check(lambda: torch.load("a", f="a"))
    path = tmp_path / "x.txt"
    path.write_text("text")
    for options in BOTH:
        with path.open() as file:
            check(lambda file=file, options=options: torch.load(file, **options))


@pytest.mark.parametrize("module", [builtins, torch.serialization])
def test_open_that_the_program_has_replaced_is_used(
    save: Saver, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    here, elsewhere = save([1], "here.pt"), save([2], "elsewhere.pt")
    real = open

    def redirected(file: Any, *args: Any, **kwargs: Any) -> Any:
        return real(elsewhere if str(file).endswith("here.pt") else file, *args, **kwargs)

    monkeypatch.setattr(module, "open", redirected, raising=False)
    assert check(lambda: torch.load(here, weights_only=False))[1] == [2]
    assert zerocopy.share.load(torch.load, here, weights_only=False) == [2], "a plain call"


class Renaming(pickle.Unpickler):
    """Makes something else of tensors and of namespaces, from torch's storages."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return {"_rebuild_tensor_v2": lambda storage, *_: storage.size(), "Namespace": dict}.get(name, found)


class Deferring(Renaming):
    """Loads nothing, as mergekit's: storages are their names."""

    def persistent_load(self, pid: Any) -> Any:
        return pid[1:3]


class InPython(pickle._Unpickler):  # type: ignore[name-defined]
    """As dill's, which is in Python."""

    def find_class(self, module: str, name: str) -> Any:
        return argparse.Namespace if name == "Gone" else super().find_class(module, name)


UNPICKLERS = {
    "find_class": Renaming,
    "persistent_load": Deferring,
    "in Python": InPython,
    "a function": lambda file: None,
}


@pytest.mark.parametrize("kind", UNPICKLERS)
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_programs_own_unpickler_keeps_its_say(
    kind: str, legacy: bool, replaced: bool, save: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"weight": torch.ones(2), "config": argparse.Namespace()}
    path = save(state, _use_new_zipfile_serialization=not legacy)
    module = types.ModuleType("program")
    vars(module).update(vars(pickle), Unpickler=UNPICKLERS[kind])
    if replaced:
        monkeypatch.setattr(pickle, "Unpickler", UNPICKLERS[kind])
        check(lambda: torch.load(path, weights_only=False))
    elif HAS_SAFE_DEFAULT:  # 1.13 ignores pickle_module, silently
        check(lambda: torch.load(path, weights_only=False, pickle_module=module))


@pytest.mark.skipif(not TAKES_MMAP, reason="needs torch.load(mmap=)")
def test_mmap_argument_is_honoured_while_patched(save: Saver) -> None:
    path = save(STATE)
    with zerocopy.patched():
        for maps, mapped in ((True, True), (False, False), (None, True)):
            state = torch.load(path, mmap=maps)
            assert lies_in_mapping(state["weight"].data_ptr(), path) == mapped


def test_position_on_hand_over(save: Saver) -> None:
    """The original finds the file where the caller left it."""
    file = io.BytesIO(b"12" + saved_bytes(STATE))
    file.seek(2)
    with zerocopy.patched():
        result = (
            torch.load(file, weights_only=True, map_location="meta") if HAS_SAFE_DEFAULT else torch.load(file)
        )
    assert result["step"] == 7


# --------------------------------------------------------------------------------- bad files


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("exit 7",)


BAD: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "HTML": lambda: b"<!doctype html><title>Sign in</title>",
    "git-lfs": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
    "text": lambda: b"hello, world\n" * 50,
    "JSON": lambda: b'{"a": 1}',
    "zeros": lambda: bytes(1000),
    "plain pickle": lambda: pickle.dumps(STATE["step"], 2),
    "only a signature": lambda: b"PK\3\4",
    "signature and junk": lambda: b"PK\3\4" + b"x" * 300,
    "cut small": lambda: saved_bytes(STATE)[:-30],
    "cut in half": lambda: saved_bytes(STATE)[:700],
    "cut large": lambda: saved_bytes(LARGE)[:-3000],
    "cut large in half": lambda: saved_bytes(LARGE)[:40_000],
    "no pickle": lambda: rezip(saved_bytes(STATE), **{"data.pkl": None}),
    "no version": lambda: rezip(saved_bytes(STATE), version=None),
    "no storage": lambda: rezip(saved_bytes(STATE), **{"data/0": None}),
    "strange version": lambda: rezip(saved_bytes(STATE), version=b"99\n"),
    "a class that is not allowed": lambda: saved_bytes({"config": argparse.Namespace(x=1)}),
    "legacy, cut in the data": lambda: saved_bytes(LARGE, _use_new_zipfile_serialization=False)[:-1000],
    "legacy, not allowed": lambda: saved_bytes(argparse.Namespace(x=1), _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("as_file", [False, True])
def test_bad_files_fail_as_with_torch(as_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    cases = []
    for name, make in BAD.items():
        path = tmp_path / f"{name}.pt"
        path.write_bytes(make())
        cases += [(f"{name} {o}", lambda p=path, o=o: torch.load(source(p, as_file), **o)) for o in BOTH]
    check_all(cases)


def test_refused_file_goes_to_torch_only_where_that_is_safe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch loads this one, in which zerocopy finds two sizes of a record."""
    content = bytearray(saved_bytes(STATE))
    content[content.index(b"PK\3\4") + 18] ^= 1
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    with caplog.at_level("DEBUG", "zerocopy"):
        check(lambda: torch.load(path, weights_only=False))
    (record,) = goes_to_stock(caplog)
    assert "different sizes" in record.getMessage()
    if HAS_SAFE_DEFAULT:
        check(lambda: torch.load(path, weights_only=True))
        return
    for kind in (RuntimeError, pickle.UnpicklingError):
        with zerocopy.patched(), pytest.raises(kind, match="different sizes") as error:
            torch.load(path, weights_only=True)
        assert isinstance(error.value.__cause__, zerocopy.FormatError)


def test_several_archives_in_one_file_are_taken_as_by_torch(tmp_path: Path) -> None:
    path = tmp_path / "several.pt"
    path.write_bytes(3 * saved_bytes(STATE))
    check(lambda: torch.load(path, weights_only=False))


def test_code_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"x": Evil()}, path)
    check(lambda: torch.load(path, weights_only=True))
    path.write_bytes(saved_bytes({"x": Evil()})[:-40])
    with zerocopy.patched(), pytest.raises((RuntimeError, OSError)):
        torch.load(path, weights_only=True)


BEHIND = {
    "a newline": b"\n",
    "the beginning of an end record": b"PK\5\6" + bytes(17),
    "an end record": b"PK\5\6" + bytes(18),
    "64 KiB": bytes(65_536),
    "as much as torch searches": bytes(69_562),
    "a byte more": bytes(69_563),
    "another archive": saved_bytes(LARGE),
    "text before": None,
}


@pytest.mark.parametrize("what", BEHIND)
def test_bytes_around_an_archive_are_taken_as_by_torch(what: str, tmp_path: Path) -> None:
    """The same end record is found by every reader, or none."""
    path, behind = tmp_path / "m.pt", BEHIND[what]
    path.write_bytes(b"text" + saved_bytes(LARGE) if behind is None else saved_bytes(LARGE) + behind)
    # Releases that are not asked load the first archive by the directory of the other.
    if what not in ("an end record", "another archive") or HAS_SAFE_DEFAULT:
        check_all((str(o), lambda o=o: torch.load(source(path, False), **o)) for o in BOTH)
    try:
        loaded = zerocopy.load(path)
    except (zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError):
        assert main(["scan", str(path)]) and main(["verify", str(path)])
    else:
        assert_same(loaded, LARGE)
        assert_same(zerocopy.open(path)["weight"] + 0, LARGE["weight"])
        assert main(["scan", str(path)]) == main(["verify", str(path)]) == 0


def test_what_a_file_is_that_torch_does_not_know_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.pt"
    for content, said in (
        (BAD["HTML"](), "HTML page"),
        (BAD["git-lfs"](), "git-lfs pointer"),
        (BAD["text"](), None),
    ):
        path.write_bytes(content)
        caplog.clear()
        with zerocopy.patched(), pytest.raises(Exception, match=r"(?s).+"):
            torch.load(path)
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [f"{path}: this is" in line and said in line for line in warned] == [True] * bool(said)


# ------------------------------------------------------------------------------ TorchScript


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    path = tmp_path / "scripted.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), str(path))
    return path


def test_torchscript_trusted(scripted: Path) -> None:
    for source in (lambda: scripted, lambda: io.BytesIO(scripted.read_bytes())):
        with zerocopy.patched(), pytest.warns(UserWarning, match="TorchScript archive"):
            module = torch.load(source(), weights_only=False)
        stock = torch.jit.load(str(scripted))
        assert_same(dict(module.state_dict()), dict(stock.state_dict()))
        assert isinstance(module, torch.jit.ScriptModule)


def test_torchscript_under_weights_only(scripted: Path) -> None:
    """1.13 would run it."""
    with zerocopy.patched(), pytest.raises(RuntimeError, match="TorchScript"):
        torch.load(scripted, weights_only=True)
    if HAS_SAFE_DEFAULT:
        assert check(lambda: torch.load(scripted, weights_only=True))[0] == "error"


# ------------------------------------------------------------------------ state of torch


@pytest.mark.skipif(not hasattr(torch.serialization, "skip_data"), reason="needs skip_data")
def test_skip_data_goes_to_the_original(save: Saver) -> None:
    path = save(STATE)

    def outcome() -> str:
        """Say where the data are, or why the release refuses: PyTorch before 2.7 cannot load without data."""
        try:
            with torch.serialization.skip_data():
                state = torch.load(path)
        except RuntimeError as error:
            return str(error)
        return "mapped" if lies_in_mapping(state["weight"].data_ptr(), path) else "elsewhere"

    expected = outcome()
    with zerocopy.patched():
        assert outcome() == expected != "mapped"


@pytest.mark.slow("imports torch's symbolic shapes")
@pytest.mark.skipif(not HAS_SAFE_DEFAULT, reason="1.13 cannot load under fake tensors")
def test_fake_tensors(save: Saver) -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    path = save(STATE)
    with zerocopy.patched(), FakeTensorMode():
        assert isinstance(torch.load(path)["weight"], FakeTensor)


def test_files_that_torch_is_configured_to_map_shared_are_written_to(tmp_path: Path) -> None:
    config = pytest.importorskip("torch.utils.serialization").config
    path = tmp_path / "m.pt"
    torch.save({"weight": torch.zeros(4)}, path)
    config.load.mmap = True
    try:
        with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED), zerocopy.patched():
            torch.load(path)["weight"].fill_(7)
    finally:
        config.load.mmap = False
    assert torch.load(path)["weight"].tolist() == [7] * 4
