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


class Schedule:
    """As torch's OneCycleLR, whose state has a bound method of an object that holds the method itself."""

    def __init__(self):
        self.anneal = self.cosine

    def cosine(self):
        return 1.0


def test_bound_method_of_an_object_that_holds_it():
    file = saved_bytes({"anneal": Schedule().anneal, "weight": torch.ones(3)})
    for loaded in (stubbed(file), zerocopy.lazy_load(io.BytesIO(file), unknown="stub")):
        schedule, attribute = loaded["anneal"].arguments
        assert (schedule.callable, attribute) == (unknown(__name__, "Schedule"), "cosine")
        assert set(schedule.state) == {"anneal"} and schedule.state["anneal"] is loaded["anneal"]
        assert torch.equal(loaded["weight"] + 0, torch.ones(3))


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


LOST = name("lost", "f")
CALLS = {
    "a call of what a call returns": (call(call(LOST, 1), 2), "<stub of <stub of lost.f>>", (2,)),
    "INST": (a.Code(a.MARK + a.code(1) + b"ilost\nf\n"), "<stub of lost.f>", (1,)),
    "OBJ": (a.Code(a.MARK + LOST + a.code(1) + b"o"), "<stub of lost.f>", (1,)),
    "NEWOBJ_EX": (a.Code(LOST + a.code((1,)) + a.code({}) + b"\x92"), "<stub of lost.f>", ((1,), {})),
    "a class of torch's": (call(name("torch", "FloatTensor"), 9), "<stub of FloatTensor>", (9,)),
    "a dtype": (call(name("torch", "float32"), 9), "<stub of torch.float32>", (9,)),
    "a set of what nobody knows": (call(name("builtins", "set"), call(LOST)), "<stub of set>", ...),
    "nothing appended": (a.Code(call(LOST) + a.MARK + b"e"), "<stub of lost.f>", ()),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_that_no_file_may_make_is_a_stub(kind):
    value, shown, arguments = CALLS[kind]
    stub, tensor = stubbed(checkpoint(a.pickle([value, a.tensor()])))
    assert repr(stub) == shown
    assert arguments is ... or stub.arguments == arguments
    assert_same(tensor, torch.arange(16.0))


def test_a_setter_of_state_that_is_called_and_dropped():
    """As cloudpickle writes functions: setter(object, state), POP."""
    put, drop, get = b"q\x09", b"0", b"h\x09"
    setter = call(name("cloudpickle", "_function_setstate"), a.Code(get), {"globals": a.tensor()})
    function = a.Code(call(name("cloudpickle", "_make_function")) + put + setter + drop)
    assert_same(stubbed(checkpoint(a.pickle(function))).state["globals"], torch.arange(16.0))


def test_keys_of_any_kind():
    """As Lightning up to 1.4 wrote its callbacks: by class."""
    keys = [
        LOST,
        LOST,
        (LOST, 1),
        name("lost", "g"),
        call(LOST),
        name("torch", "FloatStorage"),
        name("torch", "float32"),
    ]
    pairs = a.Code(b"}" + b"".join(a.code(key) + a.code(i) + b"s" for i, key in enumerate(keys)))
    f, g = unknown("lost", "f"), unknown("lost", "g")
    loaded = stubbed(checkpoint(a.pickle({"callbacks": pairs})))["callbacks"]
    assert (loaded[f], loaded[f, 1], loaded[g]) == (1, 2, 3)
    assert (loaded[torch.FloatStorage], loaded[torch.float32], len(loaded)) == (5, 6, 6)
    with pytest.raises(pickle.UnpicklingError, match=r"lost\.f"):
        zerocopy.load(checkpoint(a.pickle({LOST: 1})))


def test_a_class_that_is_allowed_as_a_key():
    with zerocopy.safe_globals([Net]):
        assert zerocopy.load(saved_bytes({"callbacks": {Net: 1}})) == {"callbacks": {Net: 1}}


def test_attributes_that_a_stub_cannot_make_harmful():
    """PyG: ``typing.OrderedDict[str, Tensor]()`` sets ``__orig_class__``."""
    mapping = a.build(a.ordered_dict(("a", a.tensor())), {"__orig_class__": call(LOST), "_metadata": 1})
    loaded = stubbed(checkpoint(a.pickle(mapping)))
    assert_same(loaded["a"], torch.arange(16.0))
    assert isinstance(loaded.__orig_class__, zerocopy.Stub) and loaded._metadata == 1
    for attribute, value in {"__orig_class__": 1, "items": call(LOST), "__class__": call(LOST)}.items():
        with pytest.raises(pickle.UnpicklingError):
            stubbed(checkpoint(a.pickle(a.build(a.ordered_dict(), {attribute: value}))))


@pytest.mark.parametrize(
    "value",
    [
        a.tensor(size=(17,)),
        a.tensor(a.storage(numel=17)),
        a.Code(a.code("text") + b")R"),
        a.build(a.tensor(), {"x": 1}),
        a.Code(b"0"),
        a.Code(a.MARK + b"o"),
        a.Code(b"}]K\1s"),
    ],
    ids=[
        "geometry",
        "storage",
        "call of a text",
        "state of a tensor",
        "POP of nothing",
        "OBJ of nothing",
        "a list as key",
    ],
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
