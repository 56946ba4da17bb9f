"""Writes the seed corpora, corpus/<target>/, anew: small inputs that show a fuzzer every part of a format.

Also those of crashes/<target>/ that a reader of the code thought of before a fuzzer did.
"""

from __future__ import annotations

import pickle
import struct
import sys
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "support")]

import assembler as zips  # noqa: E402
import legacy_files as legacy  # noqa: E402
import safetensors_files as safetensors  # noqa: E402
from assembler import Code, Entry, call, code, name  # noqa: E402


def pickles() -> dict[str, bytes]:
    plain = {"a": [1, 2.5, None, True, 2**40, 2**80, -1], "b": (1, (2,), (3, 4), ()), "c": b"bytes", "é": "x"}
    seeds = {f"plain{proto}": pickle.dumps(plain, proto) for proto in (2, 3, 4, 5)}
    seeds |= {
        f"sets{proto}": pickle.dumps([{1, 2}, frozenset({3}), bytearray(b"ab")], proto) for proto in (2, 4, 5)
    }
    seeds |= {f"dicts{proto}": pickle.dumps([OrderedDict(a=1), complex(1, 2)], proto) for proto in (2, 4)}
    itself: list[object] = []
    itself.append(itself)
    seeds["cycle"] = pickle.dumps(itself, 2)
    parameter = call(name("torch._utils", "_rebuild_parameter"), zips.tensor(), True, zips.ordered_dict())
    with_state = call(
        name("torch._utils", "_rebuild_parameter_with_state"),
        zips.tensor(),
        True,
        zips.ordered_dict(),
        {"a": 1},
    )
    model = zips.ordered_dict(
        ("weight", zips.put(parameter, 7)), ("tied", zips.get(7)), ("other", with_state)
    )
    version3 = (name("torch", "float8_e5m2"), {"conj": False, "neg": True})
    untyped = zips.storage("1", name("torch.storage", "UntypedStorage"), numel=64)
    values: dict[str, object] = {
        "tensor": {"weight": zips.tensor()},
        "strided": zips.tensor(offset=1, size=(3, 4), stride=(4, 1)),
        "empty": zips.tensor(size=(0, 2**40), stride=(1, 1)),
        "typed": zips.tensor(untyped, 0, (64,), (1,), False, None, *version3, function="_rebuild_tensor_v3"),
        "model": zips.build(model, {"_metadata": zips.ordered_dict()}),
        "legacy": legacy.tensor(legacy.storage(view=("1", 4, 8)), 0, (2, 4), (4, 1)),
        "types": [
            call(name("torch", "Size"), (1, 2)),
            call(name("torch", "device"), "cuda", 1),
            call(name("collections", "Counter"), {"a": 2}),
            call(name("collections", "OrderedDict"), [("a", 1), ["b", 2]]),
            call(name("_codecs", "encode"), "é", "latin1"),
            call(name("__builtin__", "bytearray"), "é", "latin-1"),
            name("torch", "bfloat16"),
        ],
        "foreign": zips.build(call(name("some.module", "Class"), 1), {"x": 1}),
        "created": zips.new(zips.stack_name("some.module", "Class"), "y"),
        "system": call(name("os", "system"), "true"),
    }
    return seeds | {label: zips.pickle(value) for label, value in values.items()}


def archives() -> dict[str, bytes]:
    fine = zips.entries()
    deflated = [Entry(entry.name, entry.data, method=8) for entry in fine]
    order = [*fine, Entry("archive/byteorder", b"big")]
    script = [*fine, Entry("archive/constants.pkl", zips.pickle(()))]
    described = [
        Entry(
            entry.name, entry.data, local={"flags": 8, "stored_size": 0, "size": 0, "crc": 0}, central={"flags": 8},
            descriptor=b"PK\7\10" + struct.pack("<III", zlib.crc32(entry.data), len(entry.data), len(entry.data)),
        )
        for entry in fine
    ]  # fmt: skip
    ones = 0xFFFFFFFF
    wide = [
        Entry(
            entry.name, entry.data, align=1,
            local={"stored_size": ones, "size": ones, "extra": zips.zip64(len(entry.data), len(entry.data))},
            central={"stored_size": ones, "size": ones, "extra": zips.zip64(len(entry.data), len(entry.data))},
        )
        for entry in fine
    ]  # fmt: skip
    views = [
        zips.tensor(size=(4, 4), stride=(1, 4)),
        zips.tensor(zips.storage("1", "HalfStorage", numel=3), 0, (3,)),
    ]
    many = [Entry(f"a/{i}", b"", align=1) for i in range(101)]  # from here on a thread reads the headers
    return {
        "fine": zips.archive(fine),
        "deflated": zips.archive(deflated),
        "big_endian": zips.archive(order),
        "torchscript": zips.archive(script),
        "descriptors": zips.archive(described),
        "wide": zips.archive(wide, wide={}),
        "comment": zips.archive([*fine, Entry("archive/folder/", b"")], comment=b"comment", reverse=True),
        "two_storages": zips.checkpoint(zips.pickle(views), {"0": zips.DATA, "1": b"123456"}),
        "unaligned": zips.archive([Entry(entry.name, entry.data, align=1) for entry in fine]),
        "many": zips.archive(many),
    }


def legacy_files() -> dict[str, bytes]:
    view = legacy.tensor(legacy.storage(view=("1", 4, 8)), 0, (8,), (1,))
    two = [legacy.tensor(), legacy.tensor(legacy.storage("1", "ByteStorage", numel=3), 0, (3,))]
    seeds = {f"fine{proto}": legacy.checkpoint(proto=proto) for proto in (2, 4)}
    seeds["view"] = legacy.checkpoint([view, legacy.tensor()])
    seeds["two"] = legacy.checkpoint(two, keys=("1", "0"), storages=[legacy.data(b"abc", 3), legacy.data()])
    seeds["none"] = legacy.checkpoint({"a": 1}, keys=(), storages=[])
    seeds["text_magic"] = legacy.checkpoint(magic=Code(b"L%dL\n" % legacy.MAGIC), version=Code(b"I1001\n"))
    return seeds


def streams() -> dict[str, bytes]:
    contents = {
        "empty": b"",
        "text": b"a little text, a little text",
        "zeros": bytes(5000),
        "all": bytes(range(256)) * 9,
    }
    seeds = {}
    for label, content in contents.items():
        for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_FIXED):
            squeeze = zlib.compressobj(6, zlib.DEFLATED, -15, strategy=strategy)
            seeds[f"{label}{strategy}"] = (
                struct.pack("<I", len(content)) + squeeze.compress(content) + squeeze.flush()
            )
    squeeze = zlib.compressobj(0, zlib.DEFLATED, -15)
    seeds["stored"] = struct.pack("<I", 5) + squeeze.compress(b"12345") + squeeze.flush()
    return seeds


def crashes() -> dict[str, dict[str, bytes]]:
    """A few bytes, repeated from the memo or inflated, that once took memory or time without proportion."""
    long = 4000
    keys = Code(b"](" + zips.put("k" * long, 0) + b"h\0" * 1000 + b"e")  # each was copied
    members = Code(b"](" + b"h\0" * 14000 + b"e")  # of one tuple, visited whole each time
    sets = [zips.put(tuple([1] * 1000), 0), zips.put(members, 1), zips.put(name("builtins", "set"), 2)]
    calls = Code(b"](" + b"h\2h\1\x85R" * 7 + b"e")
    return {
        "legacy": {"one_long_key_again_and_again": legacy.checkpoint({"a": 1}, keys=keys, storages=[])},
        "pickle": {"sets_of_one_long_tuple": b"\x80\2" + b"".join(map(code, sets)) + calls + b"."},
    }  # fmt: skip


def write(root: str, inputs: dict[str, dict[str, bytes]]) -> None:
    for target, named in inputs.items():
        folder = HERE / root / target
        folder.mkdir(parents=True, exist_ok=True)
        for label, content in named.items():
            (folder / label).write_bytes(content)
        print(f"{root}/{target}: {len(named)} inputs, {sum(map(len, named.values()))} bytes")


def safetensors_files() -> dict[str, bytes]:
    floats, entry = struct.pack("<16f", *range(16)), safetensors.entry
    halves = {"a": entry(shape=[8], offsets=[0, 32]), "b": entry("I32", [2, 4], [32, 64])}
    small = {"x": entry("BOOL", [2], [0, 2]), "y": entry("F4", [2, 2], [2, 4]), "z": entry("U8", [0], [4, 4])}
    return {
        "one": safetensors.file({"weight": entry()}, floats),
        "none": safetensors.file({}),
        "two": safetensors.file({"__metadata__": {"format": "pt"}, **halves}, floats),
        "small": safetensors.file(small, b"\0\1ab"),
        "scalar": safetensors.file({"s": entry("F64", [], [0, 8])}, floats[:8]),
        "escapes": safetensors.file(b'{"\\u0061\\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    }


def hdf5_files() -> dict[str, bytes]:
    """Need h5py: what it writes by default is what the core calls plain."""
    import numpy
    from attacks.hdf5 import compressed, foreign, hdf5, storage, without

    def types(file: Any) -> None:
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"):
            file[f"group/{kind}"] = numpy.ones(2, kind)

    def shapes(file: Any) -> None:
        for label, shape in {"scalar": (), "empty": (0, 3), "cube": (1, 2, 3)}.items():
            file[f"a/b/{label}"] = numpy.zeros(shape, "f4")
        file.create_group("a/c")

    def many(file: Any) -> None:
        for number in range(20):
            file[f"{number:02}"] = numpy.int8(number)

    def big_endian(file: Any) -> None:
        file["archive/byteorder"] = numpy.frombuffer(b"big", numpy.uint8)

    return {
        "table": hdf5(),
        "no_table": hdf5(without("offsets_table")),
        "big_endian": hdf5(big_endian),
        "compressed": hdf5(storage(compressed)),
        "one": foreign(lambda file: None),
        "types": foreign(types),
        "shapes": foreign(shapes),
        "many": foreign(many),
    }


def main() -> None:
    checkpoints = {f"zip_{label}": seed for label, seed in archives().items()}
    checkpoints |= {f"legacy_{label}": seed for label, seed in legacy_files().items()}
    corpora = {
        "zip": archives(),
        "name_index": pickles(),
        "pickle": pickles(),
        "legacy": legacy_files(),
        "inflate": streams(),
        "archive": checkpoints,
        "safetensors": safetensors_files(),
        "hdf5": hdf5_files(),
    }
    write("corpus", corpora)
    write("crashes", crashes())


if __name__ == "__main__":
    main()
