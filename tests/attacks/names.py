"""Pickles that name what is on no list, and the many ways to call it."""

from assembler import POP, Code, call, name, new, stack_name, tensor

from attacks.attack import CANARY, TRAP, Family
from attacks.known_names import KNOWN_NAMES
from attacks.payloads import EVAL, PAYLOADS, TOUCH, inst, new_ex, obj, refused

UTILS = "torch._utils"


_LIKE_ALLOWED = (
    refused("dotted name through collections", stack_name("collections", "abc.sys.modules"),
            "collections.abc.sys.modules"),
    refused("dotted name through an allowed function", stack_name(UTILS, "_rebuild_tensor_v2.__globals__"),
            "_rebuild_tensor_v2.__globals__"),
    refused("dotted name through an allowed class", stack_name("collections", "OrderedDict.__reduce__"),
            "OrderedDict.__reduce__"),
    refused("name with a trailing space", name(UTILS, "_rebuild_tensor_v2 "), f"{UTILS}._rebuild_tensor_v2 "),
    refused("name with a leading space", name("collections", " OrderedDict"), "collections. OrderedDict"),
    refused("module with a trailing space", name("collections ", "OrderedDict"), "collections .OrderedDict"),
    refused("name with a trailing CR", name("collections", "OrderedDict\r"), "collections.OrderedDict"),
    refused("name with a trailing NUL", name("collections", "OrderedDict\0"), "collections.OrderedDict"),
    refused("module with a trailing NUL", name("collections\0", "OrderedDict"), "OrderedDict"),
    refused("name not UTF-8", name("collections", b"OrderedDict\xff"), "collections.OrderedDict"),
    refused("module not UTF-8", name(b"collections\xff", "OrderedDict"), "OrderedDict"),
    refused("name in another case", name("collections", "ordereddict"), "collections.ordereddict"),
    refused("name that is a part of an allowed one", name("collections", "Ordered"), "collections.Ordered"),
    refused("name empty", name("collections", ""), "collections."),
    refused("module empty", name("", "OrderedDict"), ".OrderedDict"),
    refused("name with look-alike letters", name("collections", "\u041erderedDict"), "collections."),
    refused("allowed name of another module", name("builtins", "OrderedDict"), "builtins.OrderedDict"),
    refused("module and name whose join is allowed", name("torch", "_utils._rebuild_tensor_v2"),
            "torch._utils._rebuild_tensor_v2"),
    refused("module and name whose join is allowed, loading",
            {"weight": call(name("torch", "_utils._rebuild_tensor_v2"), *(None,) * 6)},
            "torch._utils._rebuild_tensor_v2"),
    refused("module and name whose join is allowed, not native",
            name("torch", "_utils._rebuild_sparse_tensor"), "torch._utils._rebuild_sparse_tensor"),
    refused("module and name whose join is allowed, STACK_GLOBAL",
            stack_name("torch", "nn.parameter.Parameter"), "torch.nn.parameter.Parameter"),
    refused("name through a module that torch imports", name("torch._utils", "torch"), "torch._utils.torch"),
)  # fmt: skip

_OPCODES = (
    refused("NEWOBJ of a class", new(name("pathlib", "Path"), CANARY), "pathlib.Path"),
    refused("NEWOBJ_EX of a class", new_ex(name("pathlib", "Path"), CANARY), "pathlib.Path"),
    refused("NEWOBJ_EX of an allowed class", new_ex(name("collections", "OrderedDict"))),
    refused("NEWOBJ of Parameter", new(name("torch.nn.parameter", "Parameter"), tensor())),
    refused("NEWOBJ of a tensor class", new(name("torch", "Tensor"), 64)),
    refused("INST of an allowed class", inst("collections", "OrderedDict")),
    refused("OBJ of an allowed class", obj(name("collections", "OrderedDict"))),
    refused("EXT1", Code(b"\x82\x01")),
    refused("EXT2", Code(b"\x83\x01\0")),
    refused("EXT4", Code(b"\x84\x01\0\0\0")),
    refused("EXT4 of a negative code", Code(b"\x84\xff\xff\xff\xff")),
    refused("undefined opcode, then a payload",
            [call(name("nowhere", "nothing")), Code(b"\xff"), call(EVAL, TOUCH)], "nowhere.nothing"),
    refused("unknown global, then a payload", [name("nowhere", "nothing"), call(EVAL, TOUCH)],
            "nowhere.nothing", "builtins.eval"),
    refused("payload in what only a looser reader reaches",
            Code(call(name("nowhere", "nothing")) + POP + call(EVAL, TOUCH)), "nowhere.nothing",
            "builtins.eval"),
    refused("_load_from_bytes by name", name("torch.storage", "_load_from_bytes"),
            "torch.storage._load_from_bytes"),
    refused("object of a torch.nn module", new(name("torch.nn.modules.linear", "Linear")), "linear.Linear"),
    refused("copyreg._reconstructor",
            call(name("copy_reg", "_reconstructor"), name("torch.nn", "Linear"), None, None),
            "copy_reg._reconstructor", "torch.nn.Linear"),
    refused("wrapper subclass of a class that the file chooses",
            call(name(UTILS, "_rebuild_wrapper_subclass"), name(TRAP, "Tensor")), f"{TRAP}.Tensor"),
    refused(
        "typed tensor of a class that the file chooses",
        call(name("torch._tensor", "_rebuild_from_type_v2"), name(UTILS, "_rebuild_tensor_v2"),
             name(TRAP, "Tensor"), (), {}),
        f"{TRAP}.Tensor",
    ),
)  # fmt: skip

_LISTED = (
    refused("5000 names of 150 characters", [name(f"module{i}", "x" * 150) for i in range(5000)], "5000"),
    refused("name of 100 000 characters", name("module", "x" * 100_000)),
    refused("module of 100 000 characters", name("x" * 100_000, "name")),
    refused("name that drives a terminal", stack_name("bidi\u202e\x1b[2J\n\ud800", "\x1b]0;title\x07"),
            "bidi"),
    refused("name that looks like two lines of the message", stack_name("a\nb.pt: all is well", "c")),
)  # fmt: skip


def _known(kind, paths):
    pairs = [path.rpartition(".")[::2] for path in paths]
    return refused(f"known names: {kind}", [name(*pair) for pair in pairs], *paths)


def _all_known():
    paths = " ".join(KNOWN_NAMES.values()).split()
    return [stack_name(*path.rpartition(".")[::2]) for path in paths]


NAMES = Family(
    "Names of what a file must not have",
    (
        *PAYLOADS,
        *_OPCODES,
        *_LIKE_ALLOWED,
        *(_known(kind, paths.split()) for kind, paths in KNOWN_NAMES.items()),
        refused("all known names, by STACK_GLOBAL", _all_known(), str(len(_all_known()))),
        *_LISTED,
    ),
)
