"""``zerocopy scan``: its verdict against what ``zerocopy.load`` does, its lists against ``pickletools``."""

from __future__ import annotations

import json
import pickle
import pickletools
import struct
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import legacy_files
import pytest
import tar_files
import torch
from assembler import (
    BUILD,
    DUP,
    NEWOBJ,
    POP,
    REDUCE,
    STACK_GLOBAL,
    Code,
    Entry,
    archive,
    build,
    call,
    checkpoint,
    code,
    entries,
    get,
    good,
    name,
    new,
    ordered_dict,
    persistent,
    put,
    stack_name,
    tensor,
)
from assembler import pickle as stream
from attacks.hdf5 import (
    attributed,
    both,
    circle,
    external,
    foreign,
    hdf5,
    linked,
    storage_bytes,
    table,
    without,
)
from commands import Capture, run_without_torch
from conftest import Saver, saved_bytes

import zerocopy
from zerocopy import _core, _torch
from zerocopy.__main__ import main
from zerocopy._torch import safe_globals
from zerocopy.cli import policy
from zerocopy.loading.objects import allowlist, rebuild


def scan(path: Path, capsys: Capture) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the one entry of ``files``."""
    status = main(["scan", "--json", str(path)])
    printed = capsys.readouterr().out
    assert printed.isascii()
    report = json.loads(printed)
    assert report["schema"] == 1 and report["command"] == "scan"
    (entry,) = report["files"]
    assert report["verdict"] == entry["verdict"] == ["safe", "unsafe", "trouble"][status]
    return status, entry


EVIL = name("posix", "system")
RUN = call(EVIL, "touch ran")
VALUE = code({"weight": tensor()})


def zipped(*values: Any, **options: Any) -> bytes:
    return checkpoint(stream(*values, **options))


SAFE = {
    "plain": checkpoint(),
    "metadata": zipped(build(ordered_dict(("a", tensor())), {"_metadata": ordered_dict()})),
    "protocol 4": zipped({"weight": tensor()}, proto=4),
    "bytes after STOP": checkpoint(good() + b"junk"),
    "a stray pickle": archive([*entries(), Entry("archive/extra.pkl", stream(RUN))]),
    "a deflated pickle": archive([Entry("archive/data.pkl", good(), method=8), *entries()[1:]]),
    "an allowed class as a value": zipped({"kind": name("torch", "FloatTensor")}),
    "a layout": zipped(call(name("torch.serialization", "_get_layout"), "torch.strided")),
    "legacy": legacy_files.checkpoint(),
}

# Each with a word of the reasons.
UNSAFE = {
    "a call": (zipped(RUN), "posix.system"),
    "a name alone": (zipped({"f": EVIL}), "posix.system"),
    "Python 2's name": (zipped(call(name("__builtin__", "eval"), "1")), "builtin"),
    "stack": (zipped(call(stack_name("posix", "system"), "ls")), "posix.system"),
    "INST": (checkpoint(b"\x80\x02(X\x02\0\0\0lsiposix\nsystem\n."), "posix.system"),
    "OBJ": (zipped(Code(b"(" + EVIL + code("ls") + b"o")), "posix.system"),
    "OBJ dropped": (checkpoint(b"\x80\x02(" + EVIL + code("ls") + b"o" + POP + VALUE + b"."), "posix.system"),
    "NEWOBJ": (zipped(new(name("collections", "deque"))), "collections.deque"),
    "extension": (zipped(Code(b"\x82\x01")), "0x82"),
    "text persid": (zipped(Code(b"Pfile\n")), "0x50"),
    "dotted": (zipped(name("torch", "serialization.os.system")), "torch.serialization"),
    "joined path": (zipped(name("torch", "_utils._rebuild_qtensor")), "torch._utils"),
    "break after payload": (checkpoint(b"\x80\x02" + RUN + b"\xff"), "posix.system"),
    "payload after an undefined opcode": (checkpoint(b"\x80\x02\xff" + RUN + b"."), "no opcode"),
    "called class": (zipped(call(name("torch", "Tensor"), 64)), "may not be called"),
    "made anew": (zipped(new(name("torch.serialization", "_get_layout"), "torch.strided")), "made anew"),
    "changed": (
        zipped(build(call(name("torch.serialization", "_get_layout"), "torch.strided"), {})), "may not be changed",
    ),
    "shadowed method": (zipped(build(ordered_dict(), {"items": 1})), "items"),
    "dunder": (zipped(build(ordered_dict(), {"__class__": 1})), "__class__"),
    "class method of type": (zipped(build(ordered_dict(), {"mro": 1})), "mro"),
    "attribute that is no name": (zipped(build(ordered_dict(), {1: 1})), "not strings"),
    "hooks": (zipped(tensor(hooks=ordered_dict(("f", 1)))), "hooks"),
    "DUP": (checkpoint(b"\x80\x02" + VALUE + DUP + b"."), "0x32"),
    "tensor outside": (zipped(tensor(size=(17,))), "structure"),
    "record missing": (checkpoint(storages={}), "missing"),
    "two names": (archive([*entries(), Entry("archive/DATA.pkl", good())]), "the name of another record"),
    "hidden bytes": (checkpoint(gap=b"hidden"), "do not belong to a record"),
    "cut": (checkpoint()[:-5], "truncated"),
    "local name": (archive([Entry("archive/data.pkl", good(), local={"name": b"archive/date.pkl"}), *entries()[1:]]),
                   "disagree"),
    "legacy payload": (legacy_files.checkpoint(RUN), "posix.system"),
    "legacy sys_info": (legacy_files.checkpoint(sys_info=RUN), "posix.system"),
    "legacy keys": (legacy_files.checkpoint(keys=code([RUN])), "posix.system"),
    "legacy module id": (legacy_files.checkpoint(persistent("module", None, "a.py", "x = 1")), "module"),
    "tar": (tar_files.checkpoint(), "tar"),
    "bare": (stream({"a": 1}), "bare pickle"),
    "bare payload": (stream(RUN), "posix.system"),
    "text payload": (b"cposix\nsystem\n(S'ls'\ntR.", "posix.system"),
}  # fmt: skip


@pytest.mark.parametrize("content", SAFE.values(), ids=SAFE)
def test_scan_of_loadable_file_is_safe(content: bytes, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    assert scan(path, capsys)[1]["reasons"] == []
    zerocopy.load(path)


@pytest.mark.parametrize(("content", "word"), UNSAFE.values(), ids=UNSAFE)
def test_scan_of_refused_file_is_unsafe(
    content: bytes, word: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    status, entry = scan(path, capsys)
    assert status == 1 and word in json.dumps(entry["reasons"])
    with pytest.raises((zerocopy.Error, pickle.UnpicklingError)):
        zerocopy.load(path)
    assert not Path("ran").exists()
    assert main(["scan", str(path)]) == 1
    assert word in capsys.readouterr().out or word == "structure"


@pytest.mark.parametrize(
    "obj",
    [
        {"a": torch.ones(3), "b": [torch.zeros(2, dtype=torch.bool), 1.5, None, "x", {1, 2}]},
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict(),
        torch.nn.Linear(2, 3),
        {"sparse": torch.eye(3).to_sparse(), "p": torch.nn.Parameter(torch.ones(2))},
        torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.qint8),
        OrderedDict(a=complex(1, 2), d=torch.float16, s=torch.Size([2])),
        {"f": len},
    ],
    ids=["plain", "state", "module", "sparse", "quantized", "odds", "function"],
)  # fmt: skip
@pytest.mark.parametrize("zip_format", [True, False])
def test_scan_of_saved_object_agrees_with_load(
    obj: Any, zip_format: bool, save: Saver, capsys: Capture
) -> None:
    path = save(obj, _use_new_zipfile_serialization=zip_format)
    try:
        zerocopy.load(path)
        loads = True
    except pickle.UnpicklingError:
        loads = False
    status, entry = scan(path, capsys)
    assert (status == 0) == loads, entry["reasons"]


def test_parameter_attributes(save: Saver, capsys: Capture, tmp_path: Path) -> None:
    """Only torch's classes know the meaning of an attribute."""
    rebuild_parameter = name("torch._utils", "_rebuild_parameter_with_state")
    for attribute, status in (("mine", 0), ("data", 1), ("__class__", 1)):
        state = {attribute: 1}
        path = tmp_path / "x.pt"
        path.write_bytes(zipped(call(rebuild_parameter, tensor(), False, ordered_dict(), state)))
        assert scan(path, capsys)[0] == status
        if status:
            with pytest.raises(pickle.UnpicklingError):
                zerocopy.load(path)
        else:
            assert zerocopy.load(path).mine == 1


def test_torchscript(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), str(path))
    status, entry = scan(path, capsys)
    assert status == 1 and entry["container"] == "torchscript" and "code is present" in entry["notes"][0]
    assert {"x/data.pkl", "x/constants.pkl"} <= {p["name"] for p in entry["pickles"] if not p["stray"]}


# ------------------------------------------------------------------------------------------ HDF5

HDF5 = {
    "plain": (lambda: hdf5(), ""),
    "h5py's": (lambda: hdf5(attributed), ""),
    "packed": (lambda: hdf5(packed_pickle), ""),
    "datasets": (lambda: foreign(lambda file: None), ""),
    "datasets, h5py's": (lambda: foreign(attributed), ""),
    "payload": (lambda: hdf5(data_pkl=stream(RUN)), "posix.system"),
    "payload, h5py's": (lambda: hdf5(attributed, stream(RUN)), "posix.system"),
    "payload, packed": (lambda: hdf5(packed_pickle, stream(RUN)), "posix.system"),
    "table": (lambda: hdf5(table([0, 4097, None])), "does not agree"),
    "two pickles": (lambda: hdf5(linked("other/data.pkl", storage_bytes())), "two datasets"),
    "circle": (lambda: hdf5(circle), "two names"),
    "external": (lambda: foreign(lambda file: external(file, "other")), "in other files"),
    "cut": (lambda: hdf5()[:-300], "truncated"),
}


def packed_pickle(file: Any) -> None:
    data = file["archive/data.pkl"][...]
    del file["archive/data.pkl"]
    file.create_dataset("archive/data.pkl", data=data, compression="gzip")


@pytest.mark.parametrize(("make", "word"), HDF5.values(), ids=HDF5)
def test_hdf5_as_load_has_it(make, word: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.write_bytes(make())
    status, entry = scan(path, capsys)
    assert (status, entry["container"]) == (1 if word else 0, "hdf5") and word in json.dumps(entry["reasons"])
    if word:
        with pytest.raises((zerocopy.Error, pickle.UnpicklingError)):
            zerocopy.load(path)
    else:
        zerocopy.load(path)


def test_pickles_in_hdf5(tmp_path: Path, capsys: Capture) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    stray = numpy.frombuffer(stream(RUN), numpy.uint8)
    numbers = numpy.frombuffer(stream(RUN).ljust(128, b"."), numpy.float32)

    def packed(file: Any) -> None:  # is read only where its name says what it is
        for other in ("y.pkl", "archive/data/packed"):
            file.create_dataset(other, data=stray, compression="gzip")

    strays = both(linked("archive/data/other", stray), linked("x.PKL", stray), linked("numbers", numbers))
    path.write_bytes(hdf5(both(strays, both(packed, without("offsets_table")))))
    status, entry = scan(path, capsys)
    found = {one["name"]: one for one in entry["pickles"]}
    assert status == 0, "a load reads neither"
    assert {name for name, one in found.items() if one["stray"]} == {"archive/data/other", "x.PKL", "y.pkl"}
    assert path.read_bytes()[found["archive/data.pkl"]["offset"] :].startswith(good())
    path.write_bytes(hdf5(packed_pickle))
    (one,) = scan(path, capsys)[1]["pickles"]
    assert (one["name"], one["offset"], one["size"]) == ("archive/data.pkl", None, len(good()))


#: On any other release torch is imported, and asked for its list.
HAS_LIST = policy.running().release in policy.LISTS


def test_hdf5_without_h5py_and_torch(tmp_path: Path) -> None:
    """The core reads what is plain; of all else is said what it takes."""
    pytest.importorskip("h5py")
    plain, other = tmp_path / "plain.h5", tmp_path / "other.h5"
    plain.write_bytes(hdf5())
    other.write_bytes(hdf5(attributed))
    commands = [[command, path] for path in (plain, other) for command in ("scan", "verify")]
    found = run_without_torch(*commands, absent=("torch", "h5py"))
    assert [done.code for done in found] == [0, 0, 2, 2]
    assert all("needs h5py, which is not installed" in done.err for done in found[2:])


# ------------------------------------------------------------------------------------- the lists


def by_pickletools(data: bytes) -> set[tuple[str, str]]:
    """Return the globals of a pickle that pickle wrote: its strings are memoized or pushed just before."""
    found, memo, last = set(), {}, []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("GLOBAL", "INST"):
            found.add(tuple(argument.split(" ", 1)))
        elif opcode.name == "STACK_GLOBAL":
            found.add((last[-2], last[-1]))
        elif "UNICODE" in opcode.name:
            last.append(argument)
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = last[-1] if last else None
        elif "PUT" in opcode.name:
            memo[argument] = last[-1] if last else None
        elif "GET" in opcode.name and memo.get(argument) is not None:
            last.append(memo[argument])
    return found


def test_globals_against_pickletools() -> None:
    tree = {"a": OrderedDict(b=1)}
    obj = [len, OrderedDict, struct.Struct, tree, pickle.PickleError("x"), (1, 2.5, b"b", "s")]
    for protocol in range(6):
        data = pickle.dumps(obj, protocol)
        walked = _core.scan(data, 100)
        assert {(m.decode(), n.decode()) for m, n, *_ in walked["globals"]} == by_pickletools(data)
        assert walked["stopped"] and walked["end"] == len(data) and not walked["fault"]
        counts = Counter(ord(opcode.code) for opcode, _, _ in pickletools.genops(data))
        assert {code: count for code, (count, _) in walked["opcodes"].items()} == counts


def test_stack_global_takes_names_from_the_stack() -> None:
    def walked(*parts: bytes) -> list[tuple[bytes, bytes]]:
        return [tuple(entry[:2]) for entry in _core.scan(b"\x80\x04" + b"".join(parts) + b".", 9)["globals"]]

    evil = [(b"posix", b"system")]
    text = [code("posix"), code("system")]
    decoy = Code(code("torch") + code("Size") + b"00")
    assert walked(*text, decoy, STACK_GLOBAL) == evil
    assert walked(put("posix", 1), code("x"), b"00", get(1), code("system"), STACK_GLOBAL) == evil
    assert walked(b"S'posix'\n", b"S'system'\n", STACK_GLOBAL) == evil
    assert walked(b"(", *text, b"t", b"0", *text, STACK_GLOBAL) == evil
    assert walked(code("posix"), b"(1", code("system"), STACK_GLOBAL) == evil
    assert walked(code("posix"), b"\x8c\x06system", b"2", b"0", STACK_GLOBAL) == evil


def test_unresolved_stack_global(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(
        zipped(Code(call(name("_codecs", "encode"), "posix", "latin1") + code("system") + STACK_GLOBAL))
    )
    status, entry = scan(path, capsys)
    (opcode,) = entry["pickles"][0]["opcodes"]
    assert status == 1 and (opcode["opcode"], opcode["count"]) == ("STACK_GLOBAL", 1)


def test_scan_marks_called_globals() -> None:
    data = (
        b"\x80\x02"
        + name("a", "b")
        + put(name("c", "d"), 1)
        + b")"
        + REDUCE
        + get(1)
        + b")"
        + NEWOBJ
        + BUILD
        + b"."
    )
    assert [entry[-1] for entry in _core.scan(data, 9)["globals"]] == [False, True]


def test_where_a_pickle_ends(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(checkpoint(good() + b"junk"))
    (found,) = scan(path, capsys)[1]["pickles"]
    assert (found["stopped"], found["size"], found["after_stop"]) == (True, len(good()), 4)
    assert path.read_bytes()[found["offset"] :].startswith(good())
    path.write_bytes(checkpoint(b"\x80\x02N\xff"))
    (found,) = scan(path, capsys)[1]["pickles"]
    assert (found["stopped"], found["size"]) == (False, 3) and "no opcode 0xff" in found["fault"]


def test_lists_of_this_release() -> None:
    """The table is that of the running torch. Without a table torch itself is asked."""
    listed = {*_torch.release_allow_list(), *allowlist.OF_OTHER_RELEASES, *safe_globals.of_torch()}

    def is_native(path: str) -> bool:
        module, _, attribute = path.rpartition(".")
        return _core.scan(name(module, attribute) + b".", 1)["globals"][0][2]

    wanted = {path for path in listed if not is_native(path) or not path.startswith("torch.")}
    assert wanted - policy.running().allowed == set()
    assert policy.running().allowed - listed == set()
    assert rebuild.SAFE.keys() == policy.FUNCTIONS


def test_another_release_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.environment, "torch_version", lambda: "9.9.1+cu999")
    policy.running.cache_clear()
    try:
        assert policy.running().release == "9.9"
        assert policy.running().allows((b"torch.serialization", b"_get_layout"))
        assert not policy.running().allows((b"posix", b"system"))
    finally:
        policy.running.cache_clear()


# ---------------------------------------------------------------------------- hostile in other ways


def test_thousands_of_globals_are_cut(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(zipped([name("m", f"{'n' * 100}{i}") for i in range(20_000)]))
    status, entry = scan(path, capsys)
    (found,) = entry["pickles"]
    assert status == 1 and len(found["globals"]) == 1000 and found["globals_left_out"] == 19_000
    assert main(["scan", str(path)]) == 1
    assert len(capsys.readouterr().out) < 100_000


@pytest.mark.slow("megabytes of opcodes")
def test_time_in_proportion() -> None:
    for data in (
        b"(" * 5_000_000,
        b"N" * 5_000_000,
        b"\x80\x04" + b"\x8c\x01a\x8c\x01b" * 10 + b"\x93" * 2_000_000,
        b"h\0" * 2_000_000,
        b"2" * 5_000_000,
        b"cm\nn\n" * 1_000_000,
        b"r\xff\xff\xff\xff" * 1_000_000,
    ):
        begun = time.process_time()
        walked = _core.scan(data, 1000)
        assert time.process_time() - begun < 5, data[:20]
        assert walked["end"] <= len(data)


def test_many_stray_pickles(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(archive([*entries(), *(Entry(f"archive/{i}.pkl", b"N.", align=1) for i in range(1500))]))
    status, entry = scan(path, capsys)
    assert status == 0 and len(entry["pickles"]) == 1000 and entry["more_pickles"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow("more mutations")) for seed in (1, 2))]
)
def test_any_bytes(seed: int, tmp_path: Path, capsys: Capture) -> None:
    """Mutations of good files: an answer each, and never "safe" for what load refuses."""
    import random

    chance = random.Random(seed)
    path = tmp_path / "x.pt"
    for origin in (
        checkpoint(),
        legacy_files.checkpoint(),
        tar_files.checkpoint(),
        saved_bytes({"a": torch.ones(9)}),
    ):
        for _ in range(40):
            content = bytearray(origin)
            for _ in range(chance.choice((1, 3, 10))):
                content[chance.randrange(len(content))] = chance.randrange(256)
            path.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
            status, _ = scan(path, capsys)
            if status == 0:
                try:
                    zerocopy.load(path)
                except (zerocopy.Error, RuntimeError) as error:  # values, which only building them shows
                    assert not isinstance(error, pickle.UnpicklingError)


# ------------------------------------------------------------------------------------- the command


def test_a_payload_is_not_run_and_torch_not_imported(tmp_path: Path) -> None:
    (tmp_path / "evil.pt").write_bytes(zipped({"weight": tensor(), "run": RUN}))
    (tmp_path / "good.pt").write_bytes(checkpoint())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/torch.py").write_text("open('imported', 'w')\nraise ImportError\n")
    script = (
        "import sys; from zerocopy.__main__ import main; status = main(['scan', *sys.argv[1:]]);"
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(status)"
    )
    for names, status in ((["good.pt"], 0), (["evil.pt"], 1), (["good.pt", "evil.pt"], 1)):
        done = subprocess.run(
            [sys.executable, "-c", script, *names], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert done.stderr == f"{status == 1 and not HAS_LIST}\n"
        assert "posix.system" in done.stdout or status == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.pt", "good.pt", "sub"]


def test_worst_of_several_files_decides_the_exit_code(tmp_path: Path, capsys: Capture) -> None:
    contents = {"good": checkpoint(), "evil": zipped(RUN), "empty": b""}
    paths = {kind: tmp_path / kind for kind in contents}
    for kind, content in contents.items():
        paths[kind].write_bytes(content)
    for kinds, wanted in ((["good", "good"], 0), (["good", "evil"], 1), (["evil", "empty", "good"], 2)):
        assert main(["scan", *(str(paths[kind]) for kind in kinds)]) == wanted
        out, err = capsys.readouterr()
        assert f"{paths['good']}: safe" in out and err.count("\n") == (wanted == 2)
