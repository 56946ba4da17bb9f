"""Mutations of pickles that leave them pickles: instructions are changed, lost, repeated, and taken from others."""

from __future__ import annotations

import itertools
import pickletools
import random
from collections.abc import Sequence

import assembler
import mutate_bytes
from assembler import code, name, text

#: Every instruction without an argument, by its byte.
_PLAIN = [op.code.encode("latin1") for op in pickletools.opcodes if op.arg is None and op.code != "."]
_NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}

#: Globals that the safe machine knows. None of them has a side effect when it is called.
GLOBALS = [
    ("torch._utils", f"_rebuild_{what}")
    for what in ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state", "sparse_tensor",
                 "qtensor", "nested_tensor", "meta_tensor_no_storage", "sparse_csr_tensor")
] + [
    ("torch", storage)
    for storage in ("FloatStorage", "DoubleStorage", "HalfStorage", "ByteStorage", "QInt8Storage", "BoolStorage")
] + [
    ("torch.storage", "UntypedStorage"), ("torch", "Size"), ("torch", "device"), ("torch", "float8_e5m2"),
    ("torch", "per_tensor_affine"), ("torch", "per_channel_affine"), ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"), ("collections", "Counter"), ("_codecs", "encode"), ("builtins", "set"),
    ("builtins", "bytearray"), ("builtins", "complex"), ("allowed", "Mine"), ("allowed", "MyDict"),
]  # fmt: skip
_WORDS = ["storage", "cpu", "0", "1", "data", "cuda:7", "meta", "", "é", "\ud800", "latin1", "torch.sparse_coo",
          "x" * 300, "__class__", "_metadata", "requires_grad"]  # fmt: skip


def split(stream: bytes) -> tuple[list[bytes], bytes]:
    """Return the instructions of a pickle, and what follows it. Raises ValueError where there is none."""
    starts = [at or 0 for _, _, at in pickletools.genops(stream)]
    ends = [*starts[1:], starts[-1] + 1]
    return [stream[begin:end] for begin, end in zip(starts, ends, strict=True)], stream[ends[-1] :]


def mutate(pickle: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Return a pickle changed; `donors` are others to take instructions from."""
    steps, rest = split(pickle)
    for _ in range(rng.choice((1, 1, 1, 3))):
        _change(steps, rng, donors)
    return b"".join(steps) + rest


def _change(steps: list[bytes], rng: random.Random, donors: Sequence[bytes]) -> None:
    at = rng.randrange(len(steps) + 1)
    match rng.randrange(9):
        case 0:
            del steps[mutate_bytes.run_of(rng, len(steps), 4)]
        case 1:
            steps[at:at] = steps[mutate_bytes.run_of(rng, len(steps), 12)] * rng.choice((1, 1, 2, 50))
        case 2:
            steps[at:at] = [_instruction(rng)]
        case 3:
            taken, _ = split(rng.choice(donors))
            steps[at:at] = taken[mutate_bytes.run_of(rng, len(taken), 30)]
        case 4 if at < len(steps):
            steps[at] = _instruction(rng)
        case 5 if at + 1 < len(steps):
            steps[at], steps[at + 1] = steps[at + 1], steps[at]
        case _:
            _change_argument(steps, rng)


def _change_argument(steps: list[bytes], rng: random.Random) -> None:
    """Another number for a number, a text for a text, a name for a name: sizes, offsets, keys, functions."""
    candidates = []
    for i, step in enumerate(steps):
        op = pickletools.code2op.get(step[:1].decode("latin1"))
        if op is not None and op.name in _NUMBERS | _TEXTS | {"GLOBAL", "NEWTRUE", "NEWFALSE", "NONE"}:
            candidates.append((i, op.name))
    if not candidates:
        return
    i, kind = rng.choice(candidates)
    if kind in _NUMBERS:
        old = next(itertools.islice(pickletools.genops(steps[i] + b"."), 1))[1]
        steps[i] = code(mutate_bytes.number(rng, int(old)))
    elif kind in _TEXTS:
        steps[i] = code(rng.choice(_WORDS))
    elif kind == "GLOBAL":
        steps[i] = name(*rng.choice(GLOBALS))
    else:
        steps[i] = rng.choice((b"\x88", b"\x89", b"N"))


def _instruction(rng: random.Random) -> bytes:
    match rng.randrange(6):
        case 0:
            return code(mutate_bytes.number(rng))
        case 1:
            return name(*rng.choice(GLOBALS))
        case 2:
            return rng.choice((code(rng.choice(_WORDS)), text(rng.randbytes(3)), code(rng.random())))
        case 3:
            return rng.choice((b"h", b"q")) + bytes([rng.randrange(12)])
        case 4:
            return rng.choice(
                (code({}), code([]), code(()), code((1, 2)), assembler.tensor(), assembler.storage())
            )
    return rng.choice(_PLAIN)
