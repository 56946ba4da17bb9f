"""The tar of before PyTorch 0.1.10, which only a trusting load reads: its pickles are whole, all else is not."""

from __future__ import annotations

import collections
import contextlib
import pickle
import random
import sys
import traceback
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import assembler  # noqa: E402
import engine  # noqa: E402
import mutate_bytes  # noqa: E402
import mutate_tar  # noqa: E402
import refusals  # noqa: E402
import tar_files  # noqa: E402
import value_check  # noqa: E402

import zerocopy  # noqa: E402


class _Unpickler(pickle.Unpickler):
    """Makes nothing but what a tar of tensors names, whatever a blind change has made of its pickles.

    pickle's own exceptions are not findings: the file is trusted, and usually complete.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name.endswith("Tensor"):  # a type that is named and never used
            return name
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name}")

    def load(self) -> Any:
        try:
            return super().load()
        except refusals.CLEAN:
            raise
        except Exception as error:
            places = traceback.extract_tb(error.__traceback__)
            if "zerocopy" in Path(places[-1].filename).parts:
                raise
            raise pickle.UnpicklingError(str(error)[:100]) from None


_PICKLE = types.SimpleNamespace(Unpickler=_Unpickler)


def seeds() -> dict[str, bytes]:
    """Return archives of one tensor, of several, of views, of tensors and storages."""
    two = tar_files.storages(
        tar_files.storage(1),
        tar_files.storage(2, "ByteStorage", data=bytes(9), count=9),
        views=((3, 1, 4, 8),),
    )
    several = tar_files.tensors(
        tar_files.tensor(4, 1, (4, 4), (1, 4)),
        tar_files.tensor(5, 2, (3,), (3,), 1, kind="ByteTensor"),
        tar_files.tensor(6, 3, (2, 0, 3), (1, 1, 1)),
        tar_files.tensor(7, 3, (), ()),
    )
    references = [tar_files.reference(key) for key in (4, 5, 6, 7, 2, 4)]
    named = assembler.ordered_dict(*((str(i), reference) for i, reference in enumerate(references)))
    found = {
        "one": tar_files.checkpoint(),
        "several": tar_files.checkpoint(references, storages=two, tensors=several),
        "named": tar_files.checkpoint(named, storages=two, tensors=several),
        "storage": tar_files.checkpoint(tar_files.reference(1)),
        "nothing": tar_files.checkpoint({"a": 1}, storages=tar_files.storages(), tensors=tar_files.tensors()),
    }
    return found | {"v7": tar_files.as_v7(found["one"])}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return an archive changed."""
    if rng.random() < 0.9:
        # An earlier change may have left nothing that tarfile can read, or write.
        with contextlib.suppress(Exception):
            return mutate_tar.mutate(data, rng)
    return mutate_bytes.mutate_bytes(data, rng)


def check(data: bytes) -> str:
    """Load, and read all of it."""
    try:
        value = zerocopy.load(data, pickle_module=_PICKLE, weights_only=False)
    except refusals.CLEAN as error:
        assert len(str(error)) <= refusals.MAX_MESSAGE_LENGTH, f"a message of {len(str(error))} characters"
        return "refused"
    except RuntimeError as error:
        if refusals.is_of_a_location(error):
            return "elsewhere"
        raise
    value_check.read_all(value)
    return "loaded"


TARGET = engine.Target("tar", seeds, mutate, check)

if __name__ == "__main__":
    engine.main(TARGET)
