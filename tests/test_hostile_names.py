"""Pickles that name or call what they must not: the threat list, §7.1."""

import pickle
import sys

import assembler as a
import hostile
import pytest
from assembler import Code, call, checkpoint, name, new, stack_name

TRAP = "zerocopy_test_trap"


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A path that exists as soon as anything of the file was imported or run."""
    path = tmp_path / "canary"
    (tmp_path / f"{TRAP}.py").write_text(
        f"import pathlib\ndef spring(*a): pathlib.Path({str(path)!r}).touch()\nspring()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    assert not path.exists()
    assert TRAP not in sys.modules


def touch(path):
    return f"__import__('pathlib').Path({str(path)!r}).touch()"


def inst(module, attribute, *arguments):
    return Code(a.MARK + b"".join(map(a.code, arguments)) + f"i{module}\n{attribute}\n".encode())


def obj(cls, *arguments):
    return Code(a.MARK + cls + b"".join(map(a.code, arguments)) + b"o")


def memo_name(module, attribute):
    """STACK_GLOBAL whose operands come from the memo."""
    return Code(a.put(module, 1) + b"0" + a.put(attribute, 2) + b"0" + a.get(1) + a.get(2) + a.STACK_GLOBAL)


def text_name(module, attribute):
    """STACK_GLOBAL whose operands are protocol 0 strings."""
    return Code(f"S'{module}'\nS'{attribute}'\n".encode() + a.STACK_GLOBAL)


#: Pickles, and what the refusal has to name. `p` is the canary's path.
NAMED = {
    "posix.mkdir": (lambda p: call(name("posix", "mkdir"), str(p)), ["posix.mkdir"]),
    "os.mkdir": (lambda p: call(name("os", "mkdir"), str(p)), ["os.mkdir"]),
    "builtins.eval": (lambda p: call(name("builtins", "eval"), touch(p)), ["builtins.eval"]),
    "builtins.exec": (lambda p: call(name("builtins", "exec"), touch(p)), ["builtins.exec"]),
    "beside a good tensor": (
        lambda p: {"weight": a.tensor(), "bad": call(name("builtins", "eval"), touch(p))},
        ["builtins.eval"],
    ),
    "two of them": (
        lambda p: [call(name("builtins", "eval"), touch(p)), name("posix", "system")],
        ["builtins.eval", "posix.system"],
    ),
    "name of Python 2": (lambda p: call(name("__builtin__", "eval"), touch(p)), ["__builtin__.eval"]),
    "getattr over an import": (
        lambda p: call(name("builtins", "getattr"), call(name("builtins", "__import__"), TRAP), "spring"),
        ["builtins.getattr", "builtins.__import__"],
    ),
    "functools.partial": (
        lambda p: call(call(name("functools", "partial"), name("builtins", "eval"), touch(p))),
        ["functools.partial", "builtins.eval"],
    ),
    "operator.methodcaller, pydoc.locate": (
        lambda p: call(call(name("operator", "methodcaller"), "spring"), call(name("pydoc", "locate"), TRAP)),
        ["operator.methodcaller", "pydoc.locate"],
    ),
    "pkgutil.resolve_name": (
        lambda p: call(call(name("pkgutil", "resolve_name"), f"{TRAP}:spring")),
        ["pkgutil.resolve_name"],
    ),
    "STACK_GLOBAL": (lambda p: call(stack_name("builtins", "eval"), touch(p)), ["builtins.eval"]),
    "STACK_GLOBAL from the memo": (
        lambda p: call(memo_name("builtins", "eval"), touch(p)),
        ["builtins.eval"],
    ),
    "STACK_GLOBAL of text strings": (
        lambda p: call(text_name("builtins", "eval"), touch(p)),
        ["builtins.eval"],
    ),
    "INST": (lambda p: inst("builtins", "eval", touch(p)), ["builtins.eval"]),
    "OBJ": (lambda p: obj(name("builtins", "eval"), touch(p)), ["builtins.eval"]),
    "OBJ dropped by POP": (
        lambda p: Code(obj(name("builtins", "eval"), touch(p)) + a.POP + a.tensor()),
        ["builtins.eval"],
    ),
    "NEWOBJ": (lambda p: new(name("pathlib", "Path"), str(p)), ["pathlib.Path"]),
    "NEWOBJ_EX": (
        lambda p: Code(name("pathlib", "Path") + a.code((str(p),)) + b"}\x92"),
        ["pathlib.Path"],
    ),
    "payload, then the stream breaks": (
        lambda p: Code(call(name("builtins", "eval"), touch(p)) + b"\xff"),
        ["builtins.eval"],
    ),
    "unknown global first": (
        lambda p: [name("nowhere", "nothing"), call(name("builtins", "eval"), touch(p))],
        ["nowhere.nothing", "builtins.eval"],
    ),
    "dotted, innocent module": (lambda p: stack_name("collections", "abc.sys.modules"), ["abc.sys.modules"]),
    "dotted, allowed module": (lambda p: stack_name("torch", "serialization.os.system"), ["os.system"]),
    "dunder walk": (
        lambda p: stack_name("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ["_rebuild_tensor_v2.__globals__"],
    ),
    "trailing space": (lambda p: name("torch._utils", "_rebuild_tensor_v2 "), ["_rebuild_tensor_v2 "]),
    "trailing CR": (lambda p: name("collections", "OrderedDict\r"), ["collections.OrderedDict"]),
    "trailing NUL": (lambda p: name("collections", "OrderedDict\0"), ["collections.OrderedDict"]),
    "not UTF-8": (lambda p: name("collections", b"OrderedDict\xff"), ["collections.OrderedDict"]),
    "the join equals an allowed path": (
        lambda p: name("torch", "_utils._rebuild_tensor_v2"),
        ["torch._utils._rebuild_tensor_v2"],
    ),
    "the join equals an allowed path, sparse": (
        lambda p: name("torch", "_utils._rebuild_sparse_tensor"),
        ["torch._utils._rebuild_sparse_tensor"],
    ),
    "module not loaded yet": (lambda p: call(name(TRAP, "spring")), [f"{TRAP}.spring"]),
    "_load_from_bytes": (
        lambda p: call(name("torch.storage", "_load_from_bytes"), checkpoint(a.pickle(name(TRAP, "spring")))),
        ["torch.storage._load_from_bytes"],
    ),
    "_codecs.decode": (lambda p: call(name("_codecs", "decode"), b"x", "latin1"), ["_codecs.decode"]),
    "module object": (lambda p: new(name("torch.nn.modules.linear", "Linear")), ["Linear"]),
    "copyreg._reconstructor": (
        lambda p: call(name("copy_reg", "_reconstructor"), name("torch.nn", "Linear"), None, None),
        ["copy_reg._reconstructor", "torch.nn.Linear"],
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_refused_and_named(case, canary, tmp_path):
    value, names = NAMED[case]
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(value(canary))))
    assert type(error) is pickle.UnpicklingError
    for refused in names:
        assert refused in str(error)


DANGEROUS = [
    "os.system",
    "subprocess.Popen",
    "pty.spawn",
    "commands.getoutput",
    "runpy.run_path",
    "code.interact",
    "importlib.import_module",
    "builtins.__import__",
    "imp.load_source",
    "zipimport.zipimporter",
    "builtins.compile",
    "pickle.loads",
    "_pickle.loads",
    "marshal.loads",
    "shelve.open",
    "dill.loads",
    "cloudpickle.loads",
    "joblib.load",
    "builtins.open",
    "io.open",
    "_io.open",
    "codecs.open",
    "shutil.rmtree",
    "os.remove",
    "pathlib.Path.touch",
    "tempfile.mkdtemp",
    "socket.create_connection",
    "urllib.request.urlopen",
    "http.client.HTTPConnection",
    "ftplib.FTP",
    "smtplib.SMTP",
    "tarfile.open",
    "zipfile.ZipFile",
    "ctypes.CDLL",
    "cffi.FFI",
    "mmap.mmap",
    "_ctypes.dlopen",
    "pdb.run",
    "bdb.Bdb.run",
    "profile.run",
    "cProfile.run",
    "trace.Trace.run",
    "timeit.timeit",
    "doctest.debug_script",
    "gc.get_objects",
    "weakref.finalize",
    "atexit.register",
    "signal.signal",
    "threading.Thread",
    "multiprocessing.Process",
    "idlelib.run.Executive",
    "test.support.script_helper.assert_python_ok",
    "lib2to3.pgen2.pgen.ParserGenerator",
    "numpy.load",
    "numpy.core.multiarray._reconstruct",
    "pandas.read_pickle",
    "asyncio.create_subprocess_shell",
    "torch.load",
    "torch.hub.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "torch.ops.load_library",
    "torch.UntypedStorage.from_file",
    "torch.as_strided",
    "torch._dynamo.optimize",
    "torch._inductor.codecache.load",
    "torch.fx.graph_module._forward_from_src",
    "torch.utils.cpp_extension.load",
    "torch.distributed.rpc.remote",
    "torch.multiprocessing.reductions.rebuild_storage_fd",
    "torch.storage._load_from_bytes",
    "torch._utils._rebuild_device_tensor",
    "torch.serialization.load",
    "torch.serialization.add_safe_globals",
    "zerocopy.load",
    "zerocopy.loading.load",
    "zerocopy.allowlist.safe_globals",
    "safetensors.torch.load_file",
    "picklescan.cli.main",
    "pip.main",
    "__main__.anything",
    "sys.modules",
    "sys.exit",
    "builtins.getattr",
    "builtins.setattr",
    "operator.attrgetter",
    "types.CodeType",
    "types.FunctionType",
    "functools.reduce",
]


def test_no_other_name_is_special(canary, tmp_path):
    for path in DANGEROUS:
        module, _, attribute = path.rpartition(".")
        error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(stack_name(module, attribute))))
        assert type(error) is pickle.UnpicklingError, path
        assert path in str(error)


def test_all_names_are_listed_at_once(tmp_path):
    names = [path.rpartition(".")[::2] for path in DANGEROUS[:20]]
    data = checkpoint(a.pickle([name(*pair) for pair in names]))
    error = hostile.refusal(tmp_path / "x.pt", data)
    for path in DANGEROUS[:20]:
        assert path in str(error)


def test_list_of_very_many_names_is_cut(tmp_path):
    data = checkpoint(a.pickle([name(f"module{i}", "x" * 150) for i in range(5000)]))
    error = hostile.refusal(tmp_path / "x.pt", data)
    assert type(error) is pickle.UnpicklingError
    assert "5000" in str(error)


def test_message_does_not_drive_the_terminal(tmp_path):
    data = checkpoint(a.pickle(stack_name("bidi\u202e\x1b[2J\n\ud800", "x" * 100_000)))
    error = hostile.refusal(tmp_path / "x.pt", data)
    assert type(error) is pickle.UnpicklingError
    assert str(error).isascii() or str(error).isprintable()
    assert "x" * (hostile.LONGEST_ECHO + 1) not in str(error)


#: Refused without a name that is not allowed: the opcode, the codec or the arguments are at fault.
UNNAMED = {
    "EXT1": lambda: Code(b"\x82\x01"),
    "EXT2": lambda: Code(b"\x83\x01\0"),
    "EXT4": lambda: Code(b"\x84\x01\0\0\0"),
    "text PERSID": lambda: Code(b"Pstorage\n"),
    "INST of an allowed name": lambda: inst("collections", "OrderedDict"),
    "OBJ of an allowed name": lambda: obj(name("collections", "OrderedDict")),
    "NEWOBJ of Parameter": lambda: new(name("torch.nn.parameter", "Parameter"), a.tensor()),
    "codec unknown": lambda: call(name("_codecs", "encode"), "x", TRAP),
    "codec idna": lambda: call(name("_codecs", "encode"), "x" * 100_000, "idna"),
    "codec punycode": lambda: call(name("_codecs", "encode"), "x" * 100_000, "punycode"),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_refused(case, canary, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(UNNAMED[case]())))
    assert type(error) is pickle.UnpicklingError


def test_class_of_a_wrapper_subclass(tmp_path):
    data = checkpoint(a.pickle(call(name("torch._utils", "_rebuild_wrapper_subclass"), name(TRAP, "Tensor"))))
    error = hostile.refusal(tmp_path / "x.pt", data)
    assert type(error) is pickle.UnpicklingError
    assert f"{TRAP}.Tensor" in str(error)
