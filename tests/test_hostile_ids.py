"""Persistent ids that name no storage: the threat list, §7.4."""

import pickle

import assembler as a
import hostile
import pytest
import torch
from assembler import Code, checkpoint, name, persistent, storage, tensor

import zerocopy

FLOATS = name("torch", "FloatStorage")


def over(**fields):
    return tensor(storage(**fields))


FORMAT = {
    "a string": Code(a.code("storage") + a.BINPERSID),
    "an int": Code(a.code(0) + a.BINPERSID),
    "None": Code(b"N" + a.BINPERSID),
    "a list": Code(a.code(["storage", FLOATS, "0", "cpu", 16]) + a.BINPERSID),
    "()": persistent(),
    "one item": persistent("storage"),
    "four items": persistent("storage", FLOATS, "0", "cpu"),
    "six items": persistent("storage", FLOATS, "0", "cpu", 16, None),
    "type name unknown": persistent("nonsense", FLOATS, "0", "cpu", 16),
    "type name an int": persistent(1, FLOATS, "0", "cpu", 16),
    "type name in another case": persistent("Storage", FLOATS, "0", "cpu", 16),
    "class a dtype": over(kind=name("torch", "float32")),
    "class OrderedDict": over(kind=name("collections", "OrderedDict")),
    "class None": over(kind=Code(b"N")),
    "class a string": over(kind=a.code("FloatStorage")),
    "key ../": over(key="../0"),
    "key absolute": over(key="/etc/passwd"),
    "key empty": over(key=""),
    "key with a space": over(key=" 0"),
    "key without record": over(key="1"),
    "key with NUL": over(key="0\0"),
    "key of 70 000 characters": over(key="0" * 70_000),
    "key with a newline and ESC": over(key="\n\x1b[2J"),
    "key not UTF-8": over(key=Code(b"U\2\xff0")),
    "key None": over(key=None),
    "key a list": over(key=[]),
    "key bytes": over(key=b"0"),
    "key the int 0": over(key=0),
    "location an int": over(location=0),
    "location None": over(location=None),
    "location of a million characters": over(location="x" * 1_000_000),
    "location not UTF-8": over(location=Code(b"U\4cpu\xff")),
    "location with a surrogate": over(location="cpu\ud800"),
    "numel -1": over(numel=-1),
    "numel -2^63": over(numel=-(2**63)),
    "numel 2^63": over(numel=2**63),
    "numel 2^64": over(numel=2**64),
    "numel 2^62, its bytes wrap to 0": over(numel=2**62),
    "numel 2^62+16, its bytes wrap to 64": over(numel=2**62 + 16),
    "numel a float": over(numel=16.0),
    "numel a string": over(numel="16"),
    "numel None": over(numel=None),
    "numel a tuple": over(numel=(16,)),
    "numel True": over(numel=True),
    "one key, two locations": [over(), tensor(storage(location="cuda:0"))],
}

REFUSED = {
    "module": persistent("module", name("collections", "OrderedDict"), "/etc/passwd", "source"),
    "class torch.FooStorage": over(kind="FooStorage"),
    "class of another module": over(kind=name("torch.sparse", "FloatStorage")),
}

TORCHS = {
    "unknown": ("nonsense", "nonsense"),
    "empty": ("", ""),
    "CUDA device 9999": ("cuda:9999", "CUDA"),
}


@pytest.mark.parametrize("case", FORMAT)
def test_format_error(case, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(FORMAT[case])))
    assert type(error) is zerocopy.FormatError
    assert "0" * (hostile.LONGEST_ECHO + 1) not in str(error)
    assert "x" * (hostile.LONGEST_ECHO + 1) not in str(error)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(REFUSED[case])))
    assert type(error) is pickle.UnpicklingError


def test_class_torch_tensor(tmp_path):
    """On the release's list or not, it is no storage."""
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(over(kind=name("torch", "Tensor")))))
    assert isinstance(error, (zerocopy.FormatError, pickle.UnpicklingError))


@pytest.mark.parametrize("case", TORCHS)
def test_location_is_judged_by_torch(case, tmp_path):
    location, said = TORCHS[case]
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(over(location=location))))
    assert type(error) is RuntimeError
    assert said in str(error)


def test_location_cuda_with_map_location(tmp_path):
    (tmp_path / "x.pt").write_bytes(checkpoint(a.pickle(over(location="cuda:0"))))
    assert torch.equal(zerocopy.load(tmp_path / "x.pt", map_location="cpu"), torch.arange(16.0))


def test_location_meta(tmp_path):
    (tmp_path / "x.pt").write_bytes(checkpoint(a.pickle(over(location="meta"))))
    loaded = zerocopy.load(tmp_path / "x.pt")
    assert loaded.device.type == "meta"
    assert loaded.shape == (16,)


def test_module_id_opens_nothing(tmp_path):
    source = tmp_path / "source.py"
    source.write_text("x = 1\n")
    before = source.stat().st_atime_ns
    id = persistent("module", name("collections", "OrderedDict"), str(source), "x = 2\n")
    hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(id)))
    assert source.stat().st_atime_ns == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.py", "x.pt"]
