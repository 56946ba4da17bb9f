"""Pickles that run code where a loader trusts them, by all the ways that there are to call."""

import struct

from assembler import (
    EMPTY_DICT,
    MARK,
    POP,
    STACK_GLOBAL,
    Code,
    call,
    checkpoint,
    code,
    get,
    name,
    pickle,
    stack_name,
    tensor,
)

from attacks.attack import CANARY, TRAP, Attack, Expected

TOUCH = f"__import__('pathlib').Path({CANARY!r}).touch()"
EVAL = name("builtins", "eval")
UTILS = "torch._utils"


def refused(what, made, *says, **more):
    return Attack(what, lambda: checkpoint(pickle(made)), Expected.REFUSED, says, **more)


def inst(module, attribute, *arguments):
    return Code(MARK + b"".join(map(code, arguments)) + f"i{module}\n{attribute}\n".encode())


def obj(cls, *arguments):
    return Code(MARK + cls + b"".join(map(code, arguments)) + b"o")


def new_ex(cls, *arguments):
    return Code(cls + code(arguments) + EMPTY_DICT + b"\x92")


def frame(body):
    return Code(b"\x95" + struct.pack("<Q", len(body)) + body)


def short(text):
    """SHORT_BINUNICODE."""
    return Code(b"\x8c" + bytes([len(text)]) + text.encode())


def remembered(opcode, *strings):
    """STACK_GLOBAL whose operands come from the memo; `opcode` makes the strings."""
    puts = b"".join(opcode(text) + b"q" + bytes([i]) + POP for i, text in enumerate(strings))
    return Code(puts + get(0) + get(1) + STACK_GLOBAL)


def string(text):
    """STRING, of protocol 0."""
    return Code(f"S'{text}'\n".encode())


def unicode_line(text):
    """UNICODE, of protocol 0."""
    return Code(f"V{text}\n".encode())


def nested():
    """A malicious checkpoint for a loader that a checkpoint calls."""
    return checkpoint(pickle(call(name(TRAP, "spring"))))


#: Payloads that run where a loader trusts the file.
PAYLOADS = (
    refused("posix.mkdir is called", call(name("posix", "mkdir"), CANARY), "posix.mkdir"),
    refused("os.mkdir is called", call(name("os", "mkdir"), CANARY), "os.mkdir"),
    refused("os.system is called", call(name("os", "system"), f"touch {CANARY}"), "os.system"),
    refused("eval is called", call(EVAL, TOUCH), "builtins.eval"),
    refused("exec is called", call(name("builtins", "exec"), TOUCH), "builtins.exec"),
    refused("eval is called beside a good tensor", {"weight": tensor(), "bad": call(EVAL, TOUCH)},
            "builtins.eval"),
    refused("eval is called, its result dropped by POP", Code(call(EVAL, TOUCH) + POP + tensor()),
            "builtins.eval"),
    refused("eval is called, its result left below the last value", Code(call(EVAL, TOUCH) + tensor()),
            "builtins.eval"),
    refused("eval as a dict key", Code(EMPTY_DICT + call(EVAL, TOUCH) + b"Ns"), "builtins.eval"),
    refused("eval as a persistent id", Code(call(EVAL, f"[{TOUCH}, 'storage']") + b"Q"), "builtins.eval"),
    refused("eval as an argument of a rebuild function", tensor(call(EVAL, TOUCH)), "builtins.eval"),
    refused("two names, both listed", [call(EVAL, TOUCH), name("posix", "system")], "builtins.eval",
            "posix.system"),
    refused("name of Python 2", call(name("__builtin__", "eval"), TOUCH), "__builtin__.eval"),
    refused("name of a module that is not loaded yet", call(name(TRAP, "spring")), f"{TRAP}.spring"),
    refused("getattr over an import",
            call(call(name("builtins", "getattr"), call(name("builtins", "__import__"), TRAP), "spring")),
            "builtins.getattr", "builtins.__import__"),
    refused("functools.partial", call(call(name("functools", "partial"), EVAL, TOUCH)), "functools.partial",
            "builtins.eval"),
    refused("functools.reduce", call(name("functools", "reduce"), EVAL, [TOUCH, {}]), "functools.reduce"),
    refused("operator.methodcaller over pydoc.locate",
            call(call(name("operator", "methodcaller"), "spring"), call(name("pydoc", "locate"), TRAP)),
            "operator.methodcaller", "pydoc.locate"),
    refused(
        "operator.attrgetter over importlib",
        call(
            call(
                call(name("operator", "attrgetter"), "spring"),
                call(name("importlib", "import_module"), TRAP),
            )
        ),
        "operator.attrgetter",
        "importlib.import_module",
    ),
    refused("pkgutil.resolve_name", call(call(name("pkgutil", "resolve_name"), f"{TRAP}:spring")),
            "pkgutil.resolve_name"),
    refused("runpy", call(name("runpy", "run_module"), TRAP), "runpy.run_module"),
    refused("timeit", call(name("timeit", "timeit"), TOUCH, "pass"), "timeit.timeit"),
    refused("STACK_GLOBAL", call(stack_name("builtins", "eval"), TOUCH), "builtins.eval"),
    refused("STACK_GLOBAL of short strings",
            call(Code(short("builtins") + short("eval") + STACK_GLOBAL), TOUCH), "builtins.eval"),
    refused("STACK_GLOBAL with operands from the memo", call(remembered(code, "builtins", "eval"), TOUCH),
            "builtins.eval"),
    refused("STACK_GLOBAL of text strings",
            call(Code(string("builtins") + string("eval") + STACK_GLOBAL), TOUCH), "builtins.eval"),
    refused("STACK_GLOBAL of text strings from the memo", call(remembered(string, "builtins", "eval"), TOUCH),
            "builtins.eval"),
    refused("STACK_GLOBAL of text unicode",
            call(Code(unicode_line("builtins") + unicode_line("eval") + STACK_GLOBAL), TOUCH),
            "builtins.eval"),
    refused("STACK_GLOBAL in a frame", call(frame(stack_name("builtins", "eval")), TOUCH), "builtins.eval"),
    refused("INST", inst("builtins", "eval", TOUCH), "builtins.eval"),
    refused("INST of Python 2's name", inst("__builtin__", "eval", TOUCH), "__builtin__.eval"),
    refused("OBJ", obj(EVAL, TOUCH), "builtins.eval"),
    refused("OBJ dropped by POP", Code(obj(EVAL, TOUCH) + POP + tensor()), "builtins.eval"),
    refused("OBJ dropped by POP_MARK", Code(MARK + obj(EVAL, TOUCH) + b"1" + tensor()), "builtins.eval"),
    refused("payload, then the stream breaks", Code(call(EVAL, TOUCH) + b"\xff"), "builtins.eval"),
    refused("payload, then the stream ends", Code(call(EVAL, TOUCH) + b"X\xff\0\0\0"), "builtins.eval"),
    refused("payload, then a stack underflow", Code(call(EVAL, TOUCH) + b"000"), "builtins.eval"),
    refused("_load_from_bytes of a nested checkpoint",
            call(name("torch.storage", "_load_from_bytes"), nested()), "torch.storage._load_from_bytes"),
    refused("pickle.loads of a nested pickle", call(name("pickle", "loads"), pickle(call(EVAL, TOUCH))),
            "pickle.loads"),
    refused("dotted name through an innocent module",
            call(Code(b"\x80\x04" + stack_name("torch", "serialization.os.mkdir")), CANARY),
            "torch.serialization.os.mkdir"),
)  # fmt: skip
