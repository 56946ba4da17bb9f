"""The safe pickle machine against torch's and Python's: the same object, or all refuse, or a documented reason.

The pickles are those of the fuzz targets, changed at random. Other readers run in a process of their own, because
hostile numbers may end it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import pickletools
import re
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import assembler as a
import pytest
import torch
from assembler import call, code, name, new, storage, tensor
from equality import assert_same
from test_differential_zip import (
    CLEAN,
    NOT_BY_TORCH,
    NOT_BY_ZIPFILE,
    Reason,
    by_torch,
    by_zerocopy,
    by_zipfile,
    refusal,
    verdict,
)
from test_differential_zip import REFUSED as ARCHIVES_REFUSED

import zerocopy

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import load_fuzz
import make_seeds
import mutate_pickle
import mutate_zip
import storages

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's about half of its own objects

MEMORY = 2**30
SECONDS = 20  # of the processor
Answer = list[str]  # "value"; "differs" and how; "error", its class and message; "killed" and the exit code


@dataclass(frozen=True)
class Program:
    """A pickle, and the contents of the storages that it names."""

    pickle: bytes
    storages: dict[str, bytes] = field(default_factory=dict)

    def file(self) -> bytes:
        """Return a checkpoint that holds it."""
        return a.checkpoint(self.pickle, self.storages)

    @property
    def is_plain(self) -> bool:
        """Return whether Python's pickle can read it: it names nothing."""
        return not re.search(rb"[cQ\x93]", self.pickle)


@functools.cache
def _donors() -> list[bytes]:
    zips = (data for name, data in load_fuzz.seeds().items() if name.startswith("zip "))
    records = (record for data in zips for record in mutate_zip.read(data))
    found = [record.data for record in records if str(record.name).endswith("/data.pkl")]
    return [*make_seeds.pickles().values(), *found]


def program(random: Random) -> Program:
    """Return a good pickle, or one that was changed a little."""
    made = random.choice(_donors())
    with contextlib.suppress(ValueError):  # the first change has left no pickle
        for _ in range(random.choice((0, 1, 1, 2))):
            made = mutate_pickle.mutate(made, random, _donors())
    wanted = {key.encode("utf-8", "replace").decode(): each for key, each in storages.wanted(made).items()}
    return Program(made, {key: storages.content(*sizes) for key, sizes in wanted.items() if key})


class _Plain(pickle.Unpickler):
    """Python's machine, without a way to name anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError("a global")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent id")


def _outcome(load: Any, *arguments: Any, **options: Any) -> tuple[Any, ...]:
    """Return a value, or an error and what it says, without what torch says of each."""
    try:
        return "value", load(*arguments, **options)
    except Exception as error:
        try:
            message = str(error)
        except Exception:  # KeyError of a tensor that cannot be printed
            message = "?"
        message = message.partition("WeightsUnpickler error: ")[2] or message
        return "error", type(error).__name__, message.partition("Check the documentation")[0].strip()[:2000]


def _described(outcome: tuple[Any, ...], ours: tuple[Any, ...]) -> Answer:
    """Return an answer as words: an error, "same" or in what it differs from ours."""
    if outcome[0] == "error":
        return list(outcome)
    if ours[0] == "error":
        return ["value", ""]
    try:
        assert_same(ours[1], outcome[1])
    except RecursionError:
        return ["value", "too deep to compare"]
    except RuntimeError as error:
        if 'device "meta"' in str(error):  # a storage by itself, without data
            return ["value", "nothing to compare"]
        return ["differs", str(error)[:500]]
    except Exception as error:  # AssertionError, or of what cannot be compared
        return ["differs", str(error)[:500]]
    return ["value", ""]


def _work(pipe: Any) -> None:
    """Answer one program after the other, in a process that hostile geometry may kill."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where Python speaks of errors that it cannot raise
    while True:
        program = pipe.recv()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        file = program.file()
        torch._utils.__dict__.get("_sparse_tensors_to_validate", []).clear()
        ours = _outcome(zerocopy.load, file)
        pipe.send(["value", ""] if ours[0] == "value" else list(ours))
        if program.is_plain:
            theirs = _outcome(_Plain(io.BytesIO(program.pickle), encoding="utf-8").load)
            pipe.send(_described(theirs, ours))
        theirs = _outcome(torch.load, io.BytesIO(file), weights_only=True)
        pipe.send(_described(theirs, ours))
        del theirs, ours
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


class Bench:
    """Asks a process of its own what each reader makes of a program."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, program: Program) -> list[Answer]:
        """Return the answers of zerocopy, pickle (of plain programs) and torch."""
        if self.process is None or not self.process.is_alive():
            self.close()
            context = multiprocessing.get_context("fork")
            self.pipe, far = context.Pipe()
            self.process = context.Process(target=_work, args=(far,), daemon=True)
            self.process.start()
            far.close()
        self.pipe.send(program)
        answers: list[Answer] = []
        try:
            for _ in range(2 + program.is_plain):
                answers.append(self.pipe.recv())  # noqa: PERF401 - those before it dies count
        except (EOFError, OSError):
            self.process.join()
            answers.append(["killed", str(self.process.exitcode)])
        return answers

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


# ------------------------------------------------------------------------------------- reasons


def _pickle(*values: Any) -> Program:
    return Program(
        a.pickle(*values),
        {"0": a.DATA, "i": bytes(32), "far": b"\xff\0\0\0\0\1\0\0" * 2, "none": b"", "one": b"1"},
    )


def _rebuild(function: str, *arguments: Any) -> Any:
    return call(name("torch._utils", function), *arguments)


def _sparse(indices: int, *coalesced: Any) -> Any:
    """Return a sparse vector of three elements, as many of which are said to be there; their indices are 0, 0, ..."""
    layout = call(name("torch.serialization", "_get_layout"), "torch.sparse_coo")
    where = tensor(storage("i", "LongStorage", "cpu", 4), 0, (1, indices), (indices, 1))
    values = tensor(storage(), 0, (indices,))
    return _rebuild("_rebuild_sparse_tensor", layout, (where, values, (3,), *coalesced))


def _quantized(scale: float, zero_point: int) -> Any:
    quantizer = (name("torch", "per_tensor_affine"), scale, zero_point)
    over = storage("i", "QUInt8Storage", "cpu", 32)
    return _rebuild("_rebuild_qtensor", over, 0, (4,), (1,), quantizer, False, a.ordered_dict())


_PARTS = (storage(), 0, (4,), (1,), False, a.ordered_dict())
_META = _rebuild("_rebuild_meta_tensor_no_storage", name("torch", "float32"), (2,), (1,), False)


#: Pickles that another reader loads and zerocopy refuses: `says` is in our message.
REFUSED = (
    Reason("pairs that are allowed only as a joined name: `torch`, `_utils._rebuild_tensor_v2`",
           r"refuses a global of this file: torch\._utils\._rebuild_tensor_v2\.",
           "a global is a pair of names; a reader that follows the dot may reach another object",
           lambda: _pickle(name("torch", "_utils._rebuild_tensor_v2"))),
    Reason("calls of tensor classes, which allocate by a number from the file",
           r"(Tensor|Storage):? may not be called by a (file|checkpoint)",
           "`torch.Tensor(64)` returns uninitialised memory; `torch.Tensor(2**38)` allocates 1 TiB",
           lambda: _pickle(call(name("torch", "FloatTensor"), 3))),
    Reason("`bytearray(n)`", r"bytearray: argument 0 is not bytes", "it allocates by a number from the file",
           lambda: _pickle(call(name("builtins", "bytearray"), 3))),
    Reason(
        "calls of plain types that pickle never writes",
        r"pickle: (torch\.Size|torch\.device|_codecs\.encode|collections\.\w+|(builtins|__builtin__)\.\w+): "
        r"(\d+ arguments|argument \d is no|argument 0 holds|device|codec)",
        "each call accepts only the argument types that pickle writes; a codec's name could import a module",
        lambda: _pickle(call(name("torch", "Size"), [1, 2])),
    ),
    Reason("new objects (NEWOBJ) of plain types", "pickle: NEWOBJ of '.*', which needs a call",
           "pickle writes a call (REDUCE) for these types", lambda: _pickle(new(name("builtins", "set")))),
    Reason("a storage of another size than its record", r"record '.*' holds \d+ bytes, its storage needs",
           "torch before 2.10 does not compare them, and reads bytes beyond the record",
           lambda: _pickle(tensor(storage(numel=8), size=(8,)))),
    Reason("one key of a storage with two types, sizes or locations",
           r"is used again with another|persistent id: -?\d+ elements of \d+ bytes",
           "torch reuses the first storage, so the second has another type than its id says",
           lambda: _pickle([storage(), storage(kind="IntStorage")])),
    Reason("persistent ids of other types than torch.save writes",
           "persistent id: its (second item|location|number of elements|key)",
           "torch takes a bool for a number, and a tensor for a type",
           lambda: _pickle(storage("one", "ByteStorage", "cpu", True))),
    Reason("quantized elements in a dense tensor",
           "a plain tensor over quantized elements|a dense tensor's dtype",
           "torch makes a tensor that fails an internal assertion when it is used",
           lambda: _pickle(tensor(storage("i", "QUInt8Storage", "cpu", 32)))),
    Reason(
        "invalid shapes of empty tensors: negative strides, products that overflow",
        r"element \d+ of a storage|needs element|negative size, stride or offset|that overflow|more bytes than fit"
        "|negative shape",
        "torch skips these checks for empty tensors, and still computes pointers",
        lambda: _pickle(tensor(size=(0,), stride=(-1,))),
    ),
    Reason(
        "sizes without strides",
        r"\d+ sizes and \d+ strides",
        "some functions of torch then use contiguous strides",
        lambda: _pickle(_rebuild("_rebuild_tensor_v3", storage(), 0, (4,), (), *_PARTS[4:], name("torch", "float32"))),
    ),
    Reason(
        "meta tensors with absurd sizes",
        "a meta tensor's (shape|strides)",
        "byte counts overflow as soon as the tensor is used",
        lambda: _pickle(
            _rebuild("_rebuild_meta_tensor_no_storage", name("torch", "float16"), (2**62, 1), (1, 1), False)
        ),
    ),
    Reason("backward hooks", "backward hooks|Boolean value of Tensor",
           "backward() would call what is in them; torch.save writes an empty OrderedDict",
           lambda: _pickle(tensor(hooks={"a": 1}))),
    Reason("attributes that the class reserves",
           "checkpoint: attribute '.*' of (OrderedDict|Tensor|Parameter)",
           "`items` would hide the method, `__class__` or `grad` make the object something else",
           lambda: _pickle(a.build(a.ordered_dict(), {"items": 1}))),
    Reason(
        "states, items or members of objects that accept none",
        "(state|items|nothing) (set on|set in|appended to|added to) (something|an? )",
        "zerocopy never changes objects made by functions of torch; Python's pickle only looks for the method",
        lambda: _pickle(code(1), a.Code(a.MARK + a.SETITEMS)),
    ),
    Reason("metadata other than `conj` and `neg`, or not a bool",
           r"metadata|_rebuild_tensor_v\d: argument \d is not a dict",
           "torch ignores unknown keys, and treats a present key as True",
           lambda: _pickle(tensor(storage(), 0, (16,), (1,), False, None, {"neg": 1}))),
    Reason(
        "requires_grad that is not a bool",
        r"argument \d is not a bool",
        "any object counts as true in some of torch's functions",
        lambda: _pickle(_rebuild("_rebuild_parameter", tensor(), name("torch", "Tensor"), a.ordered_dict())),
    ),
    Reason(
        "a parameter built from a parameter",
        r"_rebuild_parameter(_with_state)?: argument 0 is not a tensor",
        "torch.save builds a parameter from a tensor only",
        lambda: _pickle(_rebuild("_rebuild_parameter", _rebuild("_rebuild_parameter", *_PARAMETER), *_PARAMETER[1:])),
    ),
    Reason("quantizers with an invalid scale or zero point, or with the wrong number of elements",
           "a quantizer scale|a zero point out of range|a tensor that repeats its storage",
           "kernels divide by the scale and index by the zero point", lambda: _pickle(_quantized(0.0, 0))),
    Reason(
        "sparse tensors whose indices are out of range",
        r"size is inconsistent with indices|_rebuild_sparse_tensor: ",
        "`to_dense()` would write out of bounds; torch checks it in some releases, and in none for one load alone",
        lambda: _pickle(_sparse_out_of_range()),
    ),
    Reason("jagged tensors whose rows are outside of their values", "a jagged tensor's",
           "kernels index by the offsets", lambda: _pickle(_jagged())),
    Reason("keys of storages that are longer than 200 bytes", r"persistent id: key '",
           "torch.save counts the storages; each use copies the key",
           lambda: Program(a.pickle(storage("x" * 300)), {"x" * 300: a.DATA})),
    Reason("calls with a list of arguments", "the arguments of a call are not a tuple",
           "pickle writes a tuple",
           lambda: _pickle(a.Code(name("collections", "OrderedDict") + a.EMPTY_LIST + a.REDUCE))),
    Reason("dict keys: integers over 64 bytes", "a key of too large an integer|a key of too many",
           "each use hashes the key, and a few bytes can repeat the use", lambda: _pickle({1 << 600: 1})),
    Reason("memo indices beyond 4096 and the length of the pickle",
           r"memo index \d+ is beyond the pickle's length",
           "no pickler writes more entries than bytes; an array memo would grow to the index",
           lambda: _pickle(a.put(1, 5000))),
    Reason("values that nest deeper than 1000", "nest deeper than 1000",
           "walking them takes more stack than a thread has",
           lambda: _pickle(a.Code(b"]" * 1200 + b"a" * 1199))),
    Reason("frames that do not hold whole instructions", "crosses the end of its frame|inside another",
           "readers continue at different offsets (PEP 3154)",
           lambda: Program(b"\x80\4\x95\1\0\0\0\0\0\0\0K\1.")),
    Reason("opcodes of text protocols, POP and DUP", "opcode 0x[0-9a-f]+, which this reader does not know",
           "torch.save never wrote them; DUP doubles a value with each byte",
           lambda: _pickle(1, a.Code(a.DUP))),
)  # fmt: skip

_PARAMETER = (_META, True, a.ordered_dict())


def _sparse_out_of_range() -> Any:
    layout = call(name("torch.serialization", "_get_layout"), "torch.sparse_coo")
    where = tensor(storage("i", "LongStorage", "cpu", 4), 0, (1, 2), (2, 1))
    return _rebuild("_rebuild_sparse_tensor", layout, (where, tensor(storage(), 0, (2,)), (0,)))


def _jagged() -> Any:
    module = "torch.nested._internal.nested_tensor"
    offsets = tensor(storage("far", "LongStorage", "cpu", 2), 0, (2,))
    rows = {"values": tensor(), "offsets": offsets, "lengths": None, "_ragged_idx": 1, "_metadata_cache": {}}
    rebuild, kind = name(module, "_rebuild_njt"), name(module, "NestedTensor")
    return call(name("torch._tensor", "_rebuild_from_type_v2"), rebuild, kind, (rows,), {})


_NEWER = (
    r"_codecs\.encode|collections\.Counter|torch\.(device|bool|bfloat16|uint8|bits\w+)|(builtins|__builtin__)\.\w+"
    r"|torch\._utils\._rebuild_(tensor_v3|parameter_with_state|device_tensor_from_cpu_tensor)"
)

#: Pickles that zerocopy loads and another reader refuses: `says` is in its message.
ACCEPTED = (
    Reason("opcodes that later protocols write, and on 1.13 floats", "^Unsupported operand ",
           "they hold data and call nothing", lambda: _pickle([1.5, a.code(b"bytes"), a.Code(a.EMPTY_SET)])),
    Reason("names that later releases allow, on 1.13", f"^Unsupported (class|global: GLOBAL) ({_NEWER})( was not|$)",
           "the machine makes them itself, from checked arguments",
           lambda: _pickle(call(name("collections", "Counter"), {"a": 1}))),
    Reason("`bytes()`", r"^Unsupported global: GLOBAL (builtins\.)?bytes was not",
           "protocol 2 writes an empty bytes object as this call",
           lambda: _pickle(call(name("__builtin__", "bytes")))),
    Reason("the function that 1.13 wrote for CSR tensors",
           r"GLOBAL torch\._utils\._rebuild_sparse_csr_tensor was not|class torch\._utils\._rebuild_sparse_csr_tensor$",
           "zerocopy reads the files of each release",
           lambda: _pickle(name("torch._utils", "_rebuild_sparse_csr_tensor"))),
    Reason("metadata of a tensor, on 1.13",
           r"_rebuild_tensor_v2\(\) takes 6 positional arguments but 7 were given",
           "newer releases of PyTorch write this metadata",
           lambda: _pickle(tensor(storage(), 0, (16,), (1,), False, None, {"neg": True}))),
    Reason("`conj: False` of a tensor that is not complex", "^isComplexType",
           "`conj: False` is true for a tensor that is not complex",
           lambda: _pickle(tensor(storage(), 0, (16,), (1,), False, None, {"conj": False}))),
    Reason(
        "tensors of newer dtypes, and views of conjugates or negatives, that require grad",
        "a leaf Variable that requires grad is being used in an in-place operation",
        "torch saves them and cannot load them",
        lambda: _pickle(
            _rebuild("_rebuild_tensor_v3", *_PARTS[:4], True, _PARTS[5], name("torch", "float32"))
        ),
    ),
    Reason("sparse tensors that say whether they are coalesced, on 1.13",
           r"too many values to unpack \(expected 3\)", "newer releases of PyTorch write this metadata",
           lambda: _pickle(_sparse(1, True))),
    Reason("an unknown protocol number", "unsupported pickle protocol",
           "torch ignores the number too; the opcodes decide", lambda: Program(b"\x80\x83K\1.")),
)  # fmt: skip

#: Decided by :func:`is_unneeded`, whatever the other reader says.
UNNEEDED = Reason(
    "errors in values that the result does not contain",
    "",
    "zerocopy builds only the result, but checks all global names",
    lambda: _pickle(a.Code(b"U\1\xff"), 1),
)

#: Pickles that both load as different objects: `says` is where they differ.
DIFFERENT = (
    Reason(
        "storage classes as values",
        r"torch\.serialization\.StorageType",
        "torch's reader returns a substitute; zerocopy returns the class, as with weights_only=False",
        lambda: _pickle(name("torch", "FloatStorage")),
    ),
    Reason(
        "`conj` or `neg` stored as False",
        ": conj or neg$",
        "torch treats a present key as True; torch.save writes the key only if it is True",
        lambda: _pickle(tensor(storage(), 0, (16,), (1,), False, None, {"neg": False})),
    ),
    Reason(
        "an empty storage that occurs twice as a value",
        ": tied differently",
        "zerocopy returns one object twice; torch makes a new storage each time",
        lambda: _pickle([storage("none", numel=0), storage("none", numel=0)]),
    ),
    Reason(
        "one key of an empty storage with two types, on 1.13",
        r": dtype \(torch",
        "all empty storages have one key in files of some releases; torch gives the second the type of the first",
        lambda: _pickle([_empty("FloatStorage"), _empty("IntStorage")]),
    ),
)


def _empty(kind: str) -> Any:
    return tensor(storage("none", kind, "cpu", 0), size=(0,))


# ---------------------------------------------------------------------------------- comparison


def explained(bench: Bench, program: Program, answers: list[Answer]) -> list[str]:
    """Return the names of the reasons why other readers answer otherwise than zerocopy. Fails where there is none."""
    ours, *others = answers
    assert ours[0] != "killed", program
    names = []
    for theirs in others:
        if ours[0] == "error" and theirs[0] == "value":
            assert ours[1] in CLEAN, ours
            names.append(named(REFUSED, ours[2]))
        elif theirs[0] == "differs":
            names.append(named(DIFFERENT, theirs[1]))
        elif ours[0] == "value" and theirs[0] in ("error", "killed"):
            name = named(ACCEPTED, theirs[-1])
            names.append(name or (UNNEEDED.name if is_unneeded(bench, program) else ""))
    assert all(names), f"no reason is documented for: {answers}\n{program}"
    return names


def named(reasons: tuple[Reason, ...], says: str) -> str:
    """Return the name of the reason that a message belongs to, or an empty string."""
    found = [reason.name for reason in reasons if re.search(reason.says, says)]
    return next(iter(found), "")


def is_unneeded(bench: Bench, program: Program) -> bool:
    """Return whether zerocopy refuses the program too once its result holds all that was left on the stack."""
    try:
        end = next(at for opcode, _, at in pickletools.genops(program.pickle) if opcode.name == "STOP")
    except (ValueError, StopIteration):
        return False
    for marks in range(1, 9):
        whole = a.MARK + program.pickle[:end] + marks * a.TUPLE + a.STOP
        ours = bench.ask(replace(program, pickle=whole))[0]
        if ours[0] == "error":
            return "no mark on the stack" not in ours[2]
    return False


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.mark.parametrize(
    "seeds", [range(800), pytest.param(range(800, 8000), marks=pytest.mark.slow("7200 pickles"))], ids=str
)
def test_readers_agree_or_differ_for_a_known_reason(bench: Bench, seeds: range) -> None:
    unexplained, outcomes = [], collections.Counter()
    for seed in seeds:
        made = program(Random(seed))
        answers = bench.ask(made)
        outcomes.update((f"ours: {answers[0][0]}", f"torch's: {answers[-1][0]}"))
        try:
            explained(bench, made, answers)
        except AssertionError as error:
            unexplained.append(f"{seed}: {error}")
    assert not unexplained, "\n".join(unexplained)[:5000]
    enough = len(seeds) // 10
    assert min(outcomes[each] for each in ("ours: value", "ours: error", "torch's: value")) > enough, outcomes


# ------------------------------------------------------------------------------- examples of the reasons

#: For each section of docs/reference/differences.md, the reader beside torch, and the reasons.
SECTIONS = {
    "Pickles that others load and zerocopy refuses": ("pickle", REFUSED),
    "Pickles that zerocopy loads and others refuse": ("pickle", (*ACCEPTED, UNNEEDED)),
    "Pickles that both load, and not the same": ("pickle", DIFFERENT),
    "Archives that others read and zerocopy refuses": ("zipfile", ARCHIVES_REFUSED),
    "Archives that zerocopy loads and others refuse": ("zipfile", (*NOT_BY_ZIPFILE, *NOT_BY_TORCH)),
}


def answers(bench: Bench, peer: str, reason: Reason, path: Path) -> list[Answer]:
    """Return what zerocopy, the peer if it can read such files, and torch make of a reason's example."""
    example = reason.example()
    if peer == "pickle":
        found = bench.ask(example)
        return found if example.is_plain else [found[0], [], found[-1]]
    path.write_bytes(example)
    reads = (lambda: by_zerocopy(path), lambda: by_zipfile(example), lambda: by_torch(example))
    refusals = [refusal(read)[1] for read in reads]
    return [["error", *message.split(": ", 1)] if message else ["value", ""] for message in refusals]


def test_each_reason_explains_its_example(bench: Bench, tmp_path: Path) -> None:
    """zerocopy answers as the section says. Where another reader of this release differs, it is for this reason."""
    wrong, used, names = {}, 0, []
    for title, (peer, reasons) in SECTIONS.items():
        for reason in reasons:
            ours, others, torchs = answers(bench, peer, reason, tmp_path / "x.pt")
            if peer == "zipfile":
                found = {verdict(reason.example(), tmp_path / "x.pt")} - {""}
            else:
                found = set(explained(bench, reason.example(), [ours, *filter(None, [others, torchs])]))
            is_refused = title.endswith("zerocopy refuses")
            used += reason.name in found
            others_names = {name for name in found - {reason.name} if not name.endswith("on 1.13")}
            if (ours[0] == "error") != is_refused or others_names:
                wrong[reason.name] = ours, others_names
            names.append(reason.name)
    assert not wrong
    assert used > 0.6 * len(names)  # the rest is about other releases
    assert len(set(names)) == len(names)
