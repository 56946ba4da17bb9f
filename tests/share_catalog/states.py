"""States of the process that decide what a call returns."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import zerocopy
from share_catalog.case import explicit, patched


class Own:
    """A class that no allow-list has."""

    def __init__(self) -> None:
        self.weight = torch.ones(5000)


def _plain(folder: Path) -> None:
    torch.save({"w": torch.arange(5000.0), "p": torch.nn.Parameter(torch.ones(8192))}, folder / "a.pt")


def _own(folder: Path) -> None:
    torch.save({"own": Own(), "w": torch.ones(8192)}, folder / "a.pt")


@contextlib.contextmanager
def default_dtype(folder: Path) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@explicit(within=default_dtype, always=True)
def made_under_default_dtype() -> Any:
    return [torch.ones(8192), torch.tensor(1.5), torch.nn.Linear(3, 3).weight.dtype]


@patched(within=default_dtype, prepare=_plain)
def loaded_under_default_dtype(folder: Path) -> Any:
    return torch.load(folder / "a.pt"), torch.ones(3)


@contextlib.contextmanager
def default_dtype_that_changes(folder: Path) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16 if (folder / "changed").exists() else torch.float64)
    yield
    torch.set_default_dtype(before)


def mark(folder: Path) -> None:
    """Have the state of the client be another at the second run."""
    (folder / "changed").touch()


@explicit(within=default_dtype_that_changes, change=mark)
def another_default_dtype() -> Any:
    return torch.ones(8192)


@explicit(within=lambda folder: torch.device("meta"), since=(2, 1))
def made_under_default_device() -> Any:
    return torch.empty(100, 100)


@patched(within=lambda folder: torch.device("meta"), prepare=_plain, since=(2, 1))
def loaded_under_default_device(folder: Path) -> Any:
    return torch.load(folder / "a.pt"), torch.empty(3)


@contextlib.contextmanager
def set_default_device(folder: Path) -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@explicit(within=set_default_device, since=(2, 1))
def made_under_set_default_device() -> Any:
    return torch.empty(100, 100)


def scaled() -> Any:
    weight = torch.nn.Parameter(torch.ones(5000))
    return {"weight": weight, "output": weight * 2}


@explicit(within=lambda folder: torch.no_grad(), always=True)
def made_under_no_grad() -> Any:
    return scaled()


@patched(within=lambda folder: torch.no_grad(), prepare=_plain)
def loaded_under_no_grad(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@patched(config=["scaled"], within=lambda folder: torch.no_grad())
def called_under_no_grad(folder: Path) -> Any:
    return scaled()


@patched(config=["scaled"])
def called_with_gradients(folder: Path) -> Any:
    return scaled()


@contextlib.contextmanager
def gradients_that_change(folder: Path) -> Iterator[None]:
    with torch.set_grad_enabled((folder / "changed").exists()):
        yield


@patched(config=["scaled"], within=gradients_that_change, change=mark)
def called_with_and_without_gradients(folder: Path) -> Any:
    return scaled()


@explicit(within=lambda folder: torch.inference_mode(), may_refuse=True)
def made_in_inference_mode() -> Any:
    return torch.ones(8192)


@patched(within=lambda folder: torch.inference_mode(), prepare=_plain, always=True)
def loaded_in_inference_mode(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@contextlib.contextmanager
def safe_globals_of_torch(folder: Path) -> Iterator[None]:
    with torch.serialization.safe_globals([Own]):
        yield


@patched(within=safe_globals_of_torch, prepare=_own, since=(2, 5), always=True)
def loaded_under_safe_globals(folder: Path) -> Any:
    return torch.load(folder / "a.pt", weights_only=True)


@contextlib.contextmanager
def added_safe_globals(folder: Path) -> Iterator[None]:
    torch.serialization.add_safe_globals([Own])
    yield
    torch.serialization.clear_safe_globals()


@patched(within=added_safe_globals, prepare=_own, since=(2, 4))
def loaded_with_added_safe_globals(folder: Path) -> Any:
    return torch.load(folder / "a.pt", weights_only=True)


@contextlib.contextmanager
def safe_globals_that_go(folder: Path) -> Iterator[None]:
    if not (folder / "changed").exists():
        torch.serialization.add_safe_globals([Own])
    yield


@patched(within=safe_globals_that_go, prepare=_own, change=mark, since=(2, 4), always=True)
def refused_without_safe_globals(folder: Path) -> Any:
    """Processes differ in the globals that they allow."""
    try:
        return torch.load(folder / "a.pt", weights_only=True)
    except Exception as error:
        return type(error), "Own" in str(error)


@contextlib.contextmanager
def safe_globals_of_zerocopy(folder: Path) -> Iterator[None]:
    with zerocopy.safe_globals([Own]):
        yield


def _path(folder: Path) -> tuple[str]:
    return (str(folder / "a.pt"),)


@explicit(within=safe_globals_of_zerocopy, prepare=_own, arguments=_path, always=True)
def zerocopy_load_under_safe_globals(path: str) -> Any:
    return zerocopy.load(path)


@explicit(prepare=_own, arguments=_path, since=(2, 6), is_shared=False)
def refused_by_torch_load(path: str) -> Any:
    return torch.load(path)


def _trusting(path: str) -> Any:
    return torch.load(path, weights_only=False)


@explicit(prepare=_own, arguments=_path)
def loaded_with_trust(path: str) -> Any:
    return _trusting(path)


@contextlib.contextmanager
def fake_tensors(folder: Path) -> Iterator[None]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        yield


@patched(within=fake_tensors, prepare=_plain, since=(2, 5), always=True)
def loaded_in_fake_tensor_mode(folder: Path) -> Any:
    state = torch.load(folder / "a.pt")
    return {name: (type(value), value.shape, value.device) for name, value in state.items()}


class Doubling(
    torch.overrides.TorchFunctionMode if hasattr(torch.overrides, "TorchFunctionMode") else object
):  # type: ignore[misc]
    """Doubles what ``torch.ones`` returns."""

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ones else result


def ones() -> Any:
    return torch.ones(8192)


@patched(config=["ones"], within=lambda folder: Doubling(), always=True)
def called_in_torch_function_mode(folder: Path) -> Any:
    return ones()


@explicit(within=lambda folder: Doubling(), may_refuse=True)
def made_in_torch_function_mode() -> Any:
    return ones()


@contextlib.contextmanager
def counting(folder: Path) -> Iterator[None]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Negating(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return -result if "ones" in str(function) else result

    with Negating():
        yield


@patched(config=["ones"], within=counting)
def called_in_torch_dispatch_mode(folder: Path) -> Any:
    return ones()


def tag(storage: Any) -> str | None:
    return None


def restore(storage: Any, location: str) -> Any:
    if location != "cpu":
        return None
    storage.zero_() if hasattr(storage, "zero_") else storage.fill_(0)
    return storage


@contextlib.contextmanager
def registered_package(folder: Path) -> Iterator[None]:
    registry = torch.serialization._package_registry
    before = list(registry)
    torch.serialization.register_package(1, tag, restore)
    yield
    registry[:] = before


@patched(within=registered_package, prepare=_plain, always=True)
def loaded_with_a_registered_package(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@contextlib.contextmanager
def shared_mappings(folder: Path) -> Iterator[None]:
    import mmap

    before = torch.serialization.get_default_mmap_options()
    torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)
    yield
    torch.serialization.set_default_mmap_options(before)


@patched(within=shared_mappings, prepare=_plain, since=(2, 4))
def loaded_with_shared_mappings(folder: Path) -> Any:
    """Writes go to the file."""
    state = torch.load(folder / "a.pt", mmap=True)
    state["w"][3] += 100
    element = float(state["w"][3])
    again = torch.load(folder / "a.pt", mmap=False)["w"]
    element, same = float(again[3]) - element, state["w"].tolist() == again.tolist()
    state["w"][3] -= 100
    return element, same


@contextlib.contextmanager
def endianness(folder: Path) -> Iterator[None]:
    before = torch.serialization.get_default_load_endianness()
    torch.serialization.set_default_load_endianness(torch.serialization.LoadEndianness.BIG)
    yield
    torch.serialization.set_default_load_endianness(before)


def _without_byte_order(folder: Path) -> None:
    import zipfile

    _plain(folder)
    source, target = folder / "a.pt", folder / "b.pt"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if not name.endswith("byteorder"):
                new.writestr(name, old.read(name))
    target.replace(source)


@patched(within=endianness, prepare=_without_byte_order, since=(2, 1))
def loaded_with_another_byte_order(folder: Path) -> Any:
    return torch.load(folder / "a.pt")["w"]


@contextlib.contextmanager
def skipping_data(folder: Path) -> Iterator[None]:
    with torch.serialization.skip_data():
        yield


@patched(within=skipping_data, prepare=_plain, since=(2, 5))
def loaded_while_data_is_skipped(folder: Path) -> Any:
    try:
        state = torch.load(folder / "a.pt")
    except Exception as error:
        return type(error), str(error)
    return {name: (value.shape, value.dtype) for name, value in state.items()}


@contextlib.contextmanager
def deterministic(folder: Path) -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def is_deterministic() -> Any:
    return torch.are_deterministic_algorithms_enabled(), torch.empty(3).fill_(1)


@patched(config=["is_deterministic"], within=deterministic)
def called_with_deterministic_algorithms(folder: Path) -> Any:
    return is_deterministic()


@contextlib.contextmanager
def autocast(folder: Path) -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def product() -> Any:
    return torch.ones(80, 80) @ torch.ones(80, 80)


@patched(config=["product"], within=autocast, always=True)
def called_under_autocast(folder: Path) -> Any:
    return product()


@explicit(within=autocast, may_refuse=True)
def made_under_autocast() -> Any:
    return product()


@contextlib.contextmanager
def matmul_precision(folder: Path) -> Iterator[None]:
    torch.set_float32_matmul_precision("medium" if (folder / "changed").exists() else "high")
    yield
    torch.set_float32_matmul_precision("highest")


@explicit(within=matmul_precision, change=mark)
def made_with_another_precision() -> Any:
    return torch.get_float32_matmul_precision()


@contextlib.contextmanager
def replaced_registration(folder: Path) -> Iterator[None]:
    """Make modules without memory, as accelerate does."""
    original = torch.nn.Module.register_parameter

    def on_meta(module: Any, name: str, parameter: Any) -> None:
        original(
            module, name, None if parameter is None else torch.nn.Parameter(parameter.detach().to("meta"))
        )

    torch.nn.Module.register_parameter = on_meta
    yield
    torch.nn.Module.register_parameter = original


def layer() -> Any:
    return torch.nn.Embedding.from_pretrained(torch.ones(100, 100), freeze=False)


@patched(config=["layer"], within=replaced_registration)
def called_with_registration_replaced(folder: Path) -> Any:
    return layer()


@contextlib.contextmanager
def replaced_function(folder: Path) -> Iterator[None]:
    original = torch.ones
    torch.ones = lambda *args, **kwargs: original(*args, **kwargs) * 3
    yield
    torch.ones = original


@patched(config=["ones"], within=replaced_function)
def called_with_torch_ones_replaced(folder: Path) -> Any:
    return ones()


@contextlib.contextmanager
def number_of_threads(folder: Path) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@patched(within=number_of_threads, prepare=_plain, is_shared=True)
def loaded_with_more_threads(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@contextlib.contextmanager
def future_flags(folder: Path) -> Iterator[None]:
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


@patched(within=future_flags, prepare=_plain)
def loaded_with_flags_of_the_future(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@contextlib.contextmanager
def forced_weights_only(folder: Path) -> Iterator[None]:
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    yield
    del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]


@patched(within=forced_weights_only, prepare=_own, since=(2, 6))
def loaded_with_forced_weights_only(folder: Path) -> Any:
    try:
        return torch.load(folder / "a.pt")
    except Exception as error:
        return type(error), "Own" in str(error)


@contextlib.contextmanager
def another_argv(folder: Path) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["program", "--second" if (folder / "changed").exists() else "--first"]
    yield
    sys.argv = before


def argument() -> Any:
    return sys.argv[1]


@patched(config=["argument"], within=another_argv, change=mark)
def called_with_other_arguments_of_the_program(folder: Path) -> Any:
    return argument()


@contextlib.contextmanager
def another_folder(folder: Path) -> Iterator[None]:
    place = folder / ("two" if (folder / "changed").exists() else "one")
    before = Path.cwd()
    os.chdir(place)
    yield
    os.chdir(before)


def _two_folders(folder: Path) -> None:
    for i, name in enumerate(("one", "two")):
        (folder / name).mkdir()
        torch.save(torch.full((5000,), float(i)), folder / name / "a.pt")


@patched(within=another_folder, prepare=_two_folders, change=mark, always=True)
def relative_path_from_another_folder(folder: Path) -> Any:
    return torch.load("a.pt")
