"""Tar archives of before PyTorch 0.1.10, and TorchScript archives."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

import assembler
import tar_files as tar
from assembler import Code, Entry, archive, build, call, entries, name, new, pickle
from tar_files import member, reference, storage, tensor

from attacks.attack import CANARY, TRAP, Attack, Expected, Family

EQUAL, FORMAT, UNSUPPORTED = Expected.EQUAL, Expected.FORMAT, Expected.UNSUPPORTED

SPRING = call(name(TRAP, "spring"))


def trusted(cases: Mapping[str, bytes], expected: Expected = FORMAT, **more: Any) -> Iterable[Attack]:
    for title, content in cases.items():
        yield Attack(title, lambda content=content: content, expected, **more, weights_only=False)


# ----------------------------------------------------------------------------------------------- tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "GNU": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
MEMBERS = (
    member("pickle", pickle({"weight": reference(2)})),
    member("storages", tar.storages(storage())),
    member("tensors", tar.tensors(tensor())),
)


def header(title: str, **fields: Any) -> bytes:
    """Return a member's header and nothing behind it; `fields` are attributes of its ``TarInfo``."""
    return member(title, **fields)[0].tobuf(tarfile.GNU_FORMAT)


VALID = {
    "a valid tar": tar.checkpoint(),
    "a valid tar without a magic": tar.as_v7(tar.checkpoint()),
    **{f"a valid tar of the {title} format": tar.archive(MEMBERS, form) for title, form in FORMATS.items()},
}
PAYLOADS: dict[str, dict[str, Any]] = {
    "the pickle": {"obj": SPRING},
    "the number of storages": {"storages": tar.storages(storage(), count=SPRING)},
    "the views": {"storages": tar.storages(storage(), views=SPRING)},
    "the number of tensors": {"tensors": tar.tensors(tensor(), count=SPRING)},
}

#: Members that are not files, by tarfile's names. Nothing beside the archive is opened, nothing extracted.
TYPES = {
    "a symlink": (tarfile.SYMTYPE, "/etc/passwd"),
    "a symlink to nothing": (tarfile.SYMTYPE, "nowhere"),
    "a symlink to itself": (tarfile.SYMTYPE, "{}"),
    "a hard link": (tarfile.LNKTYPE, "/etc/passwd"),
    "a hard link to another member": (tarfile.LNKTYPE, "other"),
    "a hard link to itself": (tarfile.LNKTYPE, "{}"),
    "a FIFO": (tarfile.FIFOTYPE, ""),
    "a directory": (tarfile.DIRTYPE, ""),
    "a character device": (tarfile.CHRTYPE, ""),
    "a block device": (tarfile.BLKTYPE, ""),
    "of a type that nobody knows": (b"Z", ""),
}
GOOD = {
    "storages": tar.storages(storage()),
    "tensors": tar.tensors(tensor()),
    "pickle": pickle([reference(2)]),
}


def _members() -> Iterable[tuple[str, bytes]]:
    for title in GOOD:
        for what, (kind, target) in TYPES.items():
            strange = member(title, type=kind, linkname=target.format(title))
            yield f"a member {title!r} that is {what}", tar.checkpoint(other=GOOD[title], **{title: strange})
        for leading in (f"../{title}", f"/{title}", f"x/../{title}", f"x/{title}", title.upper()):
            yield f"a member called {leading!r}", tar.checkpoint(**{title: member(leading, GOOD[title])})
        yield f"a member {title!r} that is missing", tar.checkpoint(**{title: None})
        sparse = {"GNU.sparse.map": "0,64", "GNU.sparse.size": str(2**40), "GNU.sparse.name": title}
        hole = member(title, GOOD[title][:64].ljust(64), pax_headers=sparse)
        yield f"a member {title!r} of 2^40 bytes, most of them a hole", tar.checkpoint(**{title: hole})
        yield f"a member {title!r} of no bytes", tar.checkpoint(**{title: b""})


def _storages(*parts: bytes, **more: Any) -> dict[str, Any]:
    return {"storages": tar.storages(*parts, **more)}


def _tensor(*args: Any, **more: Any) -> dict[str, Any]:
    return {"tensors": tar.tensors(tensor(*args, **more))}


FAULTS: dict[str, dict[str, Any]] = {
    "-1 dimensions": _tensor(dimensions=-1),
    "2^30 dimensions": _tensor(dimensions=2**30),
    "65 dimensions": _tensor(size=(1,) * 65, stride=(1,) * 65),
    "3 dimensions, of which one is there": _tensor(dimensions=3),
    "a tensor of 17 elements over 16": _tensor(size=(17,)),
    "a tensor of 1600 elements over 16": _tensor(size=(1600,)),
    "a tensor whose stride leaves its storage": _tensor(stride=(2,)),
    "a tensor that begins behind its storage": _tensor(offset=17),
    "a tensor that begins before its storage": _tensor(offset=-1),
    "a negative size": _tensor(size=(-1,)),
    "a negative stride": _tensor(stride=(-1,)),
    "a size that wraps": _tensor(size=(2**62, 4), stride=(4, 1)),
    "a stride that wraps": _tensor(size=(5,), stride=(2**62,)),
    "a tensor over nothing": _tensor(over=99),
    "a tensor over a tensor": {"tensors": tar.tensors(tensor(), tensor(3, 2))},
    "2^60 tensors": {"tensors": tar.tensors(tensor(), count=2**60)},
    "2^60 storages": _storages(storage(), count=2**60),
    "a number of storages that is text": _storages(storage(), count="1"),
    "2^60 elements": _storages(storage(count=2**60)),
    "2^62 + 16 elements, whose bytes wrap": _storages(storage(count=2**62 + 16)),
    "-1 elements": _storages(storage(count=-1)),
    "one element more than there are bytes": {"storages": pickle(1) + storage(count=17)},
    "a view that leaves its storage": _storages(storage(), views=((3, 1, 10, 8),)),
    "a view before its storage": _storages(storage(), views=((3, 1, -1, 8),)),
    "a view of nothing": _storages(storage(), views=((3, 9, 0, 1),)),
    "views that are a number": _storages(storage(), views=7),
    "views of two items": _storages(storage(), views=((3, 1),)),
    "a storage of two items": _storages(pickle((1, "cpu")) + bytes(72)),
    "a storage whose type is a function": _storages(pickle((1, "cpu", name("os", "getcwd"))) + bytes(72)),
    "a storage of text for a key": _storages(storage("x")),
    "an unknown reference": {"obj": reference(99)},
    "a reference that is text": {"obj": reference("x")},
}


def _cuts(content: bytes) -> Iterable[tuple[str, bytes]]:
    for title in GOOD:
        at = content.index(title.encode() + bytes(1))
        yield f"cut in the header of {title!r}", content[: at + 200]
        yield f"cut behind the header of {title!r}", content[: at + 512]
        yield f"cut in the member {title!r}", content[: at + 512 + 5]


def _headers() -> Iterable[tuple[str, bytes]]:
    content = tar.checkpoint()
    yield "a member that takes -512 bytes", header("first", size=-512) + content
    yield "a member that takes -1024 bytes", header("first", size=-1024) + content
    yield "a member of 2^60 bytes", header("first", size=2**60) + content
    yield "a long name of 2^40 bytes", header("first", size=2**40, type=tarfile.GNUTYPE_LONGNAME) + content
    yield "pax fields of 2^40 bytes", header("first", size=2**40, type=tarfile.XHDTYPE) + content
    yield (
        "pax fields of no length",
        header("x", size=512, type=tarfile.XHDTYPE) + b"0 a=b\n".ljust(512, b"\0") + content,
    )


def _tar() -> Iterable[Attack]:
    for title, content in VALID.items():
        yield Attack(title, lambda content=content: content, UNSUPPORTED, ("tar",))
        yield from trusted({f"{title}, trusted": content}, EQUAL)
    for place, parts in PAYLOADS.items():
        content = tar.checkpoint(**parts)
        yield Attack(f"a payload for {place}", lambda content=content: content, UNSUPPORTED, ("tar",))
    for what, (kind, target) in TYPES.items():
        content = tar.checkpoint(storages=member("storages", type=kind, linkname=target))
        yield Attack(f"a tar with {what}", lambda content=content: content, UNSUPPORTED, ("tar",))
    yield from trusted({f"{title}, trusted": content for title, content in _members()})
    yield from trusted({f"{title}, trusted": tar.checkpoint(**parts) for title, parts in FAULTS.items()})
    yield from trusted({f"{title}, trusted": content for title, content in _cuts(tar.checkpoint())})
    yield from trusted({f"{title}, trusted": content for title, content in _headers()})
    for title, content in {
        "a zip archive behind a tar": tar.checkpoint() + assembler.checkpoint(),
        "a tar whose first name begins like a zip": tar.archive([member("PK\3\4", b""), *MEMBERS]),
    }.items():
        yield Attack(title, lambda content=content: content, FORMAT)
        yield from trusted({f"{title}, trusted": content})


TAR = Family("Tar archives", tuple(_tar()))


# ---------------------------------------------------------------------------------------- TorchScript

CLASS = """class Weights(Module):
  __parameters__ = ["weight", ]
  __buffers__ = []
  weight : Tensor
  training : bool
  def forward(self: __torch__.Weights, x: Tensor) -> Tensor:
    return torch.add(x, self.weight)
"""
#: Called like a state dict's method, by whoever thinks that this is one.
ITEMS = f"""  def items(self: __torch__.Weights) -> List[Tensor]:
    return [torch.from_file("{CANARY}", True, 4)]
"""
#: Called by torch.jit.load itself.
SETSTATE = f"""  def __getstate__(self: __torch__.Weights) -> Tuple[Tensor, bool]:
    return (self.weight, self.training)
  def __setstate__(self: __torch__.Weights, state: Tuple[Tensor, bool]) -> NoneType:
    weight, training, = state
    self.weight = torch.from_file("{CANARY}", True, 4)
    self.training = training
    return None
"""
WEIGHT = assembler.tensor(hooks=call(name("collections", "OrderedDict")))
NO_CONSTANTS = pickle(Code(assembler.EMPTY_TUPLE))


def script(
    *methods: str, state: Any = None, module: Any = None, constants: bytes = NO_CONSTANTS
) -> list[Entry]:
    """Return the records of a program, as torch.jit.save writes them."""
    state = {"weight": WEIGHT, "training": True} if state is None else state
    module = build(new(name("__torch__", "Weights")), state) if module is None else module
    source = "".join((CLASS, *methods)).encode()
    more = Entry("archive/code/__torch__.py", source), Entry("archive/constants.pkl", constants)
    return [*entries(pickle(module)), *more]


def without(record: str, records: list[Entry]) -> list[Entry]:
    return [entry for entry in records if entry.name != f"archive/{record}"]


PROGRAM = script()
PROGRAMS: dict[str, list[Entry]] = {
    "a program": PROGRAM,
    "a program that exports items(), which makes a file": script(ITEMS),
    "a program that makes a file when it is loaded": script(SETSTATE, state=(WEIGHT, True)),
    "a program for mobile phones": [*PROGRAM, Entry("archive/bytecode.pkl", pickle((3,)))],
    "a program with a payload in data.pkl": script(module=SPRING),
    "a program with a payload in constants.pkl": script(constants=pickle((SPRING,))),
    "a program without its code": without("code/__torch__.py", PROGRAM),
}
EXPORTED = [
    Entry("model/archive_format", b"pt2"),
    Entry("model/archive_version", b"0"),
    Entry("model/models/model.json", b"{}"),
    Entry("model/data/weights/weight_0", assembler.DATA),
    Entry("model/byteorder", b"little"),
    Entry("model/version", b"3\n"),
]


def _torchscript() -> Iterable[Attack]:
    for title, records in PROGRAMS.items():
        yield Attack(
            title, lambda records=records: archive(records), UNSUPPORTED, ("TorchScript", "torch.jit.load")
        )
    whole = archive(PROGRAM)
    yield Attack("a program, cut", lambda: whole[:-1], FORMAT)
    yield Attack("a program without data.pkl", lambda: archive(without("data.pkl", PROGRAM)), UNSUPPORTED)
    yield Attack("what torch.export wrote", lambda: archive(EXPORTED), UNSUPPORTED)
    source = Entry("archive/code/__torch__.py", (CLASS + SETSTATE).encode())
    yield Attack("code without constants.pkl", lambda: archive([*entries(), source]), EQUAL)
    yield Attack("a program, trusted", lambda: whole, Expected.LOADS, weights_only=False)
    yield Attack("a program, cut, trusted", lambda: whole[:-1], FORMAT, weights_only=False)
    broken = archive(PROGRAMS["a program without its code"])
    yield Attack("a program without its code, trusted", lambda: broken, Expected.TORCH, weights_only=False)


TORCHSCRIPT = Family("TorchScript archives", tuple(_torchscript()))
