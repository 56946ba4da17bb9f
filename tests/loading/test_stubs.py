"""``unknown="stub"``: what a file says of objects whose classes nobody allows, without their code."""

import io
import pickle
import sys

import assembler as a
import legacy_files
import pytest
import torch
from assembler import call, checkpoint, name, new
from conftest import saved_bytes
from equality import assert_same

import zerocopy

TRAP = "zerocopy_test_trap"


def stubbed(data):
    return zerocopy.load(data, unknown="stub")


def unknown(module, attribute):
    return zerocopy.UnknownGlobal(module, attribute)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("steps", torch.tensor(7))


def test_module_whose_class_is_missing(monkeypatch):
    net = Net()
    file = saved_bytes(net)
    monkeypatch.delattr(sys.modules[__name__], "Net")
    stub = stubbed(file)
    assert stub.callable == unknown(__name__, "Net")
    layer = stub.state["_modules"]["layer"]
    assert layer.callable == unknown("torch.nn.modules.linear", "Linear")
    assert_same(dict(layer.state["_parameters"]), dict(net.layer.named_parameters()))
    assert_same(stub.state["_buffers"]["steps"], net.steps)


@pytest.mark.filterwarnings("ignore")
def test_legacy_module_with_its_source(tmp_path):
    """The source that the file gives is neither read nor compared."""
    net = torch.nn.Linear(3, 2)
    file = io.BytesIO()
    torch.save(net, file, _use_new_zipfile_serialization=False)
    with pytest.raises(pickle.UnpicklingError, match="module"):
        zerocopy.load(file.getvalue())
    stub = stubbed(file.getvalue())
    assert stub.callable == unknown("torch.nn.modules.linear", "Linear")
    assert_same(stub.state["_parameters"]["weight"], net.weight)


def test_everything_that_is_done_to_an_object_is_kept():
    obj = new(name("lost.module", "Class"), 1, "two")
    filled = a.Code(obj + b"K\3a" + a.code("key") + a.code(a.tensor()) + b"s" + a.code({"step": 4}) + b"b")
    stub = stubbed(checkpoint(a.pickle(filled)))
    assert (stub.callable, stub.arguments) == (unknown("lost.module", "Class"), (1, "two"))
    assert stub.items == [3]
    assert [key for key, _ in stub.entries] == ["key"]
    assert_same(stub.entries[0][1], torch.arange(16.0))
    assert stub.state == {"step": 4}
    assert repr(stub) == "<stub of lost.module.Class>"


def test_nothing_is_imported_or_run(tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (tmp_path / f"{TRAP}.py").write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    payload = call(name("builtins", "eval"), f"__import__('pathlib').Path({str(canary)!r}).touch()")
    stub = stubbed(checkpoint(a.pickle([payload, call(name(TRAP, "spring")), name("os", "system")])))
    assert stub[0].callable == unknown("builtins", "eval")
    assert stub[2] == unknown("os", "system")
    assert TRAP not in sys.modules
    assert not canary.exists()


def test_tensor_of_an_unknown_subclass():
    """The tensor under it is there."""
    parts = (a.storage(), 0, (16,), (1,), False, a.ordered_dict())
    rebuilt = call(
        name("torch._tensor", "_rebuild_from_type_v2"),
        name("torch._utils", "_rebuild_tensor_v2"), name("lost", "Image"), parts, {"dpi": 300},
    )  # fmt: skip
    stub = stubbed(checkpoint(a.pickle(rebuilt)))
    assert stub.callable == unknown("lost", "Image")
    assert stub.state == {"dpi": 300}
    assert_same(stub.arguments[0], torch.arange(16.0))


@pytest.mark.parametrize(
    "value",
    [
        a.tensor(size=(17,)),
        a.tensor(a.storage(numel=17)),
        a.Code(a.MARK + b"ios\nsystem\n"),
        call(call(name("lost", "f"))),
        a.build(a.tensor(), {"x": 1}),
    ],
    ids=["geometry", "storage", "INST", "call of a call", "state of a tensor"],
)
def test_the_rest_is_as_strict_as_ever(value):
    with pytest.raises((zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError)):
        stubbed(checkpoint(a.pickle(value)))


def test_module_id_is_no_other_way_in():
    module = a.persistent("module", name("posix", "system"), "file.py", "source")
    file = legacy_files.checkpoint([module, legacy_files.tensor()])
    assert stubbed(file)[0] == unknown("posix", "system")


def test_wrong_arguments():
    file = saved_bytes([1])
    with pytest.raises(ValueError, match="'refuse' or 'stub', not 'ignore'"):
        zerocopy.load(file, unknown="ignore")
    with pytest.raises(ValueError, match="weights_only"):
        zerocopy.load(file, unknown="stub", weights_only=False)


def test_names_are_printed_harmlessly():
    value = stubbed(checkpoint(a.pickle(name(b"a\x1b[31m\xff", "b"))))
    assert repr(value).isprintable()
