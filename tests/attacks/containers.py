"""Tar archives of before PyTorch 0.1.10, and TorchScript archives."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from typing import Any

import assembler
import tar_files as tar
from assembler import Code, Entry, archive, build, call, entries, name, new, pickle
from tar_files import member, reference, storage, tensor

from attacks.attack import CANARY, TRAP, Attack, Expected, Family

EQUAL, FORMAT, UNSUPPORTED = Expected.EQUAL, Expected.FORMAT, Expected.UNSUPPORTED

SPRING = call(name(TRAP, "spring"))


# ----------------------------------------------------------------------------------------------- tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "GNU": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
MEMBERS = (
    member("pickle", pickle({"weight": reference(2)})),
    member("storages", tar.storages(storage())),
    member("tensors", tar.tensors(tensor())),
)


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

#: Members that are not files, by tarfile's names. Nothing is unpacked.
TYPES = {
    "a symlink": (tarfile.SYMTYPE, "/etc/passwd"),
    "a symlink to nothing": (tarfile.SYMTYPE, "nowhere"),
    "a symlink to itself": (tarfile.SYMTYPE, "storages"),
    "a hard link": (tarfile.LNKTYPE, "/etc/passwd"),
    "a hard link to another member": (tarfile.LNKTYPE, "other"),
    "a hard link to itself": (tarfile.LNKTYPE, "storages"),
    "a FIFO": (tarfile.FIFOTYPE, ""),
    "a directory": (tarfile.DIRTYPE, ""),
    "a character device": (tarfile.CHRTYPE, ""),
    "a block device": (tarfile.BLKTYPE, ""),
    "of a type that nobody knows": (b"Z", ""),
}


def _tar() -> Iterable[Attack]:
    for title, content in VALID.items():
        yield Attack(title, lambda content=content: content, UNSUPPORTED, ("tar",))
    for place, parts in PAYLOADS.items():
        content = tar.checkpoint(**parts)
        yield Attack(f"a payload for {place}", lambda content=content: content, UNSUPPORTED, ("tar",))
    for what, (kind, target) in TYPES.items():
        content = tar.checkpoint(storages=member("storages", type=kind, linkname=target))
        yield Attack(f"a tar with {what}", lambda content=content: content, UNSUPPORTED, ("tar",))
    for title, content in {
        "a zip archive behind a tar": tar.checkpoint() + assembler.checkpoint(),
        "a tar whose first name begins like a zip": tar.archive([member("PK\3\4", b""), *MEMBERS]),
    }.items():
        yield Attack(title, lambda content=content: content, FORMAT)


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
    Entry("model/models/model.json", b"storages"),
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
