"""Uses of tensors in programs, with placeholders: operators, NumPy, pickling, parameters, autograd."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import operator
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torch.utils.dlpack
from conftest import Saver, lies_in_mapping, outcome, saved_bytes
from equality import assert_same
from kinds.kind import has
from lazily import assert_all, is_placeholder, same_on_both

import zerocopy

pytestmark = pytest.mark.filterwarnings("ignore")  # of prototypes

STATE = {
    "w": torch.arange(6.0).view(2, 3) - 2,
    "v": torch.tensor([1.0, -1.0, 2.0]),
    "p": torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])),
    "q": torch.nn.Parameter(torch.ones(2, 3)),
    "frozen": torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "leaf": torch.ones(3, requires_grad=True),
    "i": torch.tensor([1, 0]),
    "n": torch.tensor(2),
    "s": torch.tensor(2.5),
    "yes": torch.tensor(True),
    "mask": torch.tensor([True, False, True]),
    "c": torch.tensor([1 + 2j, 3j]),
    "empty": torch.empty(0),
}
FILE = saved_bytes(STATE)

Uses = dict[str, Callable[[Any], Any]]


def each_way(symbol: Callable[[Any, Any], Any], d: Any) -> Any:
    """Return an operator's results with a placeholder at the left, at the right, and on both sides."""
    w, ones = d["w"], torch.ones(2, 3)
    return [symbol(w, ones), symbol(ones, w), symbol(w, w), symbol(w, 2), symbol(2, w), symbol(w, d["v"])]


def flags_of(tensor: torch.Tensor) -> list[bool]:
    return [tensor.requires_grad, (tensor * 2).requires_grad, tensor.requires_grad]


def whole(symbol: Callable[[Any, Any], Any], d: Any) -> Any:
    i = d["i"]
    return [symbol(i, i), symbol(i, 1), symbol(1, i), symbol(i, torch.ones(2).long())]


def in_place(symbol: Callable[[Any, Any], Any], d: Any) -> Any:
    """Change a placeholder, and a plain tensor by one; the name is bound to what comes back."""
    d["w"] = symbol(d["w"], 2)
    return [symbol(torch.ones(2, 3), d["w"]), d["w"] + 0]


def each(use: Callable[..., Any], names: str) -> Uses:
    """Return a use of each operator."""
    return {name: functools.partial(use, getattr(operator, name)) for name in names.split()}


OPERATORS: Uses = {
    **each(each_way, "add sub mul truediv floordiv mod pow lt le eq ne gt ge"),
    **each(whole, "and_ or_ xor lshift rshift"),
    **each(in_place, "iadd isub imul itruediv ifloordiv imod ipow"),
    "matmul": lambda d: [d["w"] @ d["v"], torch.ones(4, 2) @ d["w"], d["w"] @ d["w"].t()],
    "unary": lambda d: [-d["w"], +d["w"], abs(d["w"]), ~d["mask"], d["w"].T],
    "equal to None": lambda d: [d["w"] == None, d["w"] != None],  # noqa: E711
    "sum of a list": lambda d: sum([d["v"], d["v"], d["v"]]),
}

ITEMS: Uses = {
    "integer": lambda d: [d["w"][0], d["w"][-1], d["w"][0][1], d["w"][1, 2]],
    "slices": lambda d: [d["w"][:, 1:], d["w"][::2], d["w"][..., 0], d["w"][None], d["w"][1:1]],
    "mask of itself": lambda d: d["w"][d["w"] > 0],
    "placeholder as index": lambda d: [
        torch.ones(3, 2)[d["i"]],
        d["w"][:, d["i"]],
        torch.arange(5)[d["n"] :],
    ],
    "placeholder as mask": lambda d: [
        torch.arange(3)[d["mask"]],
        x := torch.zeros(2, 3),
        x.__setitem__(0, d["v"]),
    ],
    "storage address": lambda d: d["w"].data_ptr() == d["w"].view(-1).data_ptr() != 0,
    "list": lambda d: d["w"][[1, 0, 1]],
    "of a list": lambda d: ["a", "b", "c"][d["n"]],
    "set an item to one": lambda d: d["w"].__setitem__(0, d["v"]),
    "len": lambda d: [len(d["w"]), len(d["empty"])],
    "iteration": lambda d: [*d["w"], *d["v"]],
    "in": lambda d: [2.0 in d["w"], 99 in d["w"], d["s"] in d["w"]],
    "in a list": lambda d: d["w"] in [d["w"], 7],
    "tolist": lambda d: [d["w"].tolist(), d["s"].item(), d["c"].tolist()],
}

NUMBERS: Uses = {
    "bool": lambda d: [bool(d["yes"]), bool(d["s"]), not d["n"], bool(d["empty"])],
    "float": lambda d: [float(d["s"]), float(d["n"])],
    "int": lambda d: [int(d["s"]), int(d["n"])],
    "complex": lambda d: [complex(d["s"]), complex(d["c"][0])],
    "index": lambda d: [operator.index(d["n"]), [0] * d["n"], hex(d["n"]), bin(d["n"])],
    "format": lambda d: [f"{d['s']:.3f}", f"{d['n']:04d}", "{:e}".format(d["s"]), "{:>9.2f}".format(d["s"])],
    "as a size": lambda d: [torch.zeros(d["n"], 2), torch.ones(4).view(d["n"], 2), torch.full((2,), d["s"])],
    "torch.tensor": lambda d: [torch.tensor(d["w"]), torch.tensor([d["s"], d["n"]])],
}

NUMPY: Uses = {
    "numpy": lambda d: [d["w"].numpy(), d["i"].numpy(), d["mask"].numpy()],
    "numpy that requires grad": lambda d: d["p"].numpy(),
    "asarray": lambda d: [np.asarray(d["w"]), np.array(d["w"]), np.asarray(d["w"], dtype=np.float64)],
    "array of numbers": lambda d: np.array([d["s"], d["n"]]),
    "shared": lambda d: [x := d["w"].numpy(), x.fill(5), d["w"]],
    "dlpack": lambda d: torch.from_dlpack(d["w"]),
    "dlpack to NumPy": lambda d: np.from_dlpack(d["w"]),
    "__dlpack_device__": lambda d: tuple(map(int, d["w"].__dlpack_device__())),
}

CALLS: Uses = {
    "by name": lambda d: [torch.add(input=d["w"], other=1), torch.cat(tensors=[d["v"]], dim=0)],
    "out": lambda d: [torch.add(torch.ones(3), 1, out=d["v"]), d["v"]],
    "out is plain": lambda d: [x := torch.empty(3), torch.mul(d["v"], 2, out=x)],
    "ops": lambda d: [torch.ops.aten.add.Tensor(d["v"], d["v"]), torch.ops.aten.stack([d["v"], d["v"]])],
    "script": lambda d: scripted(d["v"], [d["v"], d["v"]]),
    "to": lambda d: [d["w"].to(torch.float16), d["w"].to("meta"), torch.ones(1).to(d["i"]), d["w"].double()],
    "nested": lambda d: list(torch.nested.nested_tensor([d["v"], d["w"][0]]).unbind()),
    "sparse": lambda d: [d["w"].to_sparse(), torch.sparse_coo_tensor(d["i"][None], d["v"][:2], (2,))],
    "pytree": lambda d: torch.utils._pytree.tree_map(lambda x: x + 0, {"a": [d["v"], (d["w"], 1)]}),
    "DataLoader": lambda d: list(torch.utils.data.DataLoader([d["v"], d["v"] + 1], batch_size=2)),
    "storage": lambda d: [d["w"].storage().tolist(), d["w"].storage_offset()],
    "set_": lambda d: torch.empty(0).set_(d["w"]),
    "attributes": lambda d: [setattr(d["w"], "note", 7), d["w"].note],
    "getattr": lambda d: [getattr(d["w"], "note", 7), hasattr(d["w"], "note"), hasattr(d["p"], "note")],
    "as_subclass": lambda d: d["w"].as_subclass(torch.nn.Parameter),
}

COPIES: Uses = {
    "deepcopy": lambda d: copy.deepcopy(d["w"]),
    "deepcopy of twice": lambda d: copy.deepcopy([d["w"], d["w"], d["w"][0]]),
    "copy": lambda d: [copy.copy(d["w"]), copy.copy(d["p"])],
    "pickle": lambda d: [pickle.loads(pickle.dumps(t)) for t in d.values()],
    **{f"pickle {n}": lambda d, n=n: pickle.loads(pickle.dumps(d["p"], n)) for n in range(2, 6)},
    "torch.save": lambda d: zerocopy.load(saved_bytes([d["w"], d["p"], d["w"][0]])),
    "clone": lambda d: [d["w"].clone(), d["p"].clone(), torch.clone(d["w"])],
    "share_memory_": lambda d: [d["w"].share_memory_().is_shared(), d["w"]],
}


def trained(d: Any, p: Any) -> Any:
    (p * d["v"]).sum().backward()
    torch.optim.SGD([p], lr=0.5, momentum=0.9).step()
    return p


class Double(torch.autograd.Function):
    """A function of the user's."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2 + ctx.saved_tensors[0] * 0


def hooked(p: Any) -> Any:
    found: list[Any] = []
    handle = p.register_hook(lambda grad: found.append(grad.clone()))
    (p * 3).sum().backward()
    handle.remove()
    (p * 3).sum().backward()
    return [found, p.grad]


def later_hooked(p: Any) -> Any:
    found: list[Any] = []
    p.register_post_accumulate_grad_hook(lambda q: found.append(q.grad.clone()))
    (p * 3).sum().backward()
    return found


PARAMETERS: Uses = {
    "Parameter": lambda d: torch.nn.Parameter(d["w"]),
    "Parameter of a parameter": lambda d: [torch.nn.Parameter(d["p"]), torch.nn.Parameter(d["frozen"])],
    "Parameter of integers": lambda d: outcome(lambda: torch.nn.Parameter(d["i"]))[:2],  # in other words
    "Parameter that trains": lambda d: trained(d, torch.nn.Parameter(d["w"])),
    "Parameter shares memory": lambda d: [p := torch.nn.Parameter(d["w"]), p.data.fill_(7), d["w"]],
    "register_parameter": lambda d: [
        m := torch.nn.Module(),
        m.register_parameter("p", torch.nn.Parameter(d["w"])),
        list(m.parameters()),
    ],
    "ParameterList": lambda d: [p + 0 for p in torch.nn.ParameterList([d["w"], d["p"]])],
    "isinstance": lambda d: [isinstance(d[name], torch.nn.Parameter) for name in d],
    "asarray with a flag": lambda d: flags_of(torch.asarray(d["leaf"], requires_grad=False)),
    "parameter to a module": lambda d: [
        m := torch.nn.Linear(3, 2),
        setattr(m, "weight", d["q"]),
        m(torch.ones(1, 3)).sum().backward(),
        m.weight.grad,
    ],
    **({"Buffer": lambda d: torch.nn.Buffer(d["w"])} if has("torch.nn.Buffer") else {}),
}

AUTOGRAD: Uses = {
    "backward": lambda d: [(d["p"] * d["v"]).sum().backward(), d["p"].grad],
    "no grad": lambda d: [d["p"].grad, d["v"].grad, d["v"].grad_fn, (d["p"] * 2).requires_grad],
    "train": lambda d: trained(d, d["p"]),
    "grad set": lambda d: [setattr(d["p"], "grad", torch.ones(3)), d["p"].grad],
    "hooks": lambda d: hooked(d["p"]),
    "gradient": lambda d: [(x := torch.ones(3, requires_grad=True)), (x * 2).backward(d["v"]), x.grad],
    "inference_mode": lambda d: torch.inference_mode()(lambda: (d["v"] * 2).is_inference())(),
    "requires_grad_": lambda d: [d["v"].requires_grad_(), (d["v"] * 2).sum().backward(), d["v"].grad][1:],
    "of integers": lambda d: d["i"].requires_grad_(),
    "detach": lambda d: [d["p"].detach(), d["p"].detach().requires_grad],
    "data": lambda d: [d["p"].data, d["p"].data.requires_grad],
    "custom function": lambda d: [Double.apply(d["p"]).sum().backward(), d["p"].grad],
}

if has("torch.func.vmap"):
    AUTOGRAD |= {
        "vmap": lambda d: torch.vmap(lambda row: row.sum())(d["w"]),
        "func.grad": lambda d: torch.func.grad(lambda x: (x**2).sum())(d["w"]),
        "post accumulate": lambda d: later_hooked(d["p"]),
    }


@torch.jit.script
def scripted(x: torch.Tensor, xs: list[torch.Tensor]) -> torch.Tensor:
    return x * 2 + torch.stack(xs).sum()


GROUPS = {
    "operators": OPERATORS,
    "items": ITEMS,
    "numbers": NUMBERS,
    "NumPy": NUMPY,
    "calls": CALLS,
    "copies": COPIES,
    "parameters": PARAMETERS,
    "autograd": AUTOGRAD,
}


@pytest.mark.parametrize("group", GROUPS)
def test_uses_of_placeholders_give_what_uses_of_tensors_give(group: str) -> None:
    """The same result, the same error, and the same of the tensors afterwards."""
    uses = GROUPS[group]
    assert_all(lambda use: same_on_both(FILE, uses[use]) == "value", uses, at_least=0.7)


@torch.jit.script
def changed_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1).mul_(2) + 1


def test_compiled_functions_apply_bits(save: Saver) -> None:
    conjugated = torch.tensor([1 + 2j, 3 - 4j]).conj()
    for x, function in itertools.product((conjugated, conjugated.imag), (scripted, changed_in_place)):
        path = save({"x": x})
        arguments = ([torch.ones(2)],) if function is scripted else ()
        for _ in range(3):  # the second call is the one that is optimized
            lazy, real = zerocopy.lazy_load(path)["x"], torch.load(path)["x"]
            assert torch.equal(function(lazy, *arguments), function(real, *arguments))
            assert torch.equal(lazy.materialize(), real)


@pytest.mark.slow("imports torch's compiler")
@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with 2.0")
def test_torch_compile_takes_placeholders(save: Saver) -> None:
    path = save({"x": torch.arange(3.0)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = torch.compile(lambda x: x * 2 + 1, backend="eager")(zerocopy.lazy_load(path)["x"])
    assert found.tolist() == [1, 3, 5]
    assert [warning for warning in caught if "Dynamo detected" in str(warning.message)] == []


def test_a_parameter_lies_in_the_file(save: Saver) -> None:
    path = save(STATE)
    lazy = zerocopy.lazy_load(path)
    for name in ("w", "p"):
        made = torch.nn.Parameter(lazy[name])
        assert type(made) is torch.nn.Parameter and lies_in_mapping(made.data_ptr(), path)


def test_results_are_plain_tensors() -> None:
    lazy = zerocopy.lazy_load(FILE)
    results = [lazy["w"] + 1, lazy["w"][0], lazy["w"].contiguous(), lazy["w"].detach(), lazy["w"].view(-1)]
    results += [
        lazy["w"].add_(1),
        lazy["w"].data,
        lazy["w"].to(torch.float32),
        lazy["w"].requires_grad_(False),
    ]
    assert {type(result) for result in results} == {torch.Tensor}
    assert all(map(is_placeholder, lazy.values()))


def test_functions_that_return_their_argument_keep_the_placeholder() -> None:
    """torch gives back what it was given: a placeholder, which goes on working."""
    lazy = zerocopy.lazy_load(FILE)
    assert torch.as_tensor(lazy["w"]) is lazy["w"] or type(torch.as_tensor(lazy["w"])) is torch.Tensor
    plain = torch.ones(2, 3, requires_grad=True)
    plain.grad = lazy["w"]
    torch.optim.SGD([plain], lr=1.0).step()
    assert torch.equal(plain.detach(), torch.ones(2, 3) - STATE["w"])
    (plain * 2).sum().backward()
    assert torch.equal(plain.grad + 0, STATE["w"] + 2)


INPUTS: Uses = {
    "backward": lambda p: (p * 2).sum().backward(inputs=[p]),
    "autograd.backward": lambda p: torch.autograd.backward([(p * 2).sum()], inputs=[p]),
}


def test_backward_to_inputs_gives_the_gradient_or_none() -> None:
    """docs/lazy.md: on torch 1.13, which asks no class there, no gradient; never another one."""
    for use in INPUTS.values():
        use(parameter := zerocopy.lazy_load(FILE)["p"])
        assert parameter.grad is None or torch.equal(parameter.grad, torch.full((3,), 2.0))


def test_forking_pickler_puts_a_copy_into_shared_memory() -> None:
    """docs/lazy.md: so torch.multiprocessing passes placeholders on."""
    for name in ("w", "p", "i"):
        tensor = zerocopy.lazy_load(FILE)[name]
        shared = pickle.loads(bytes(ForkingPickler.dumps(tensor)))
        assert_same(shared + 0, zerocopy.load(FILE)[name] + 0)
        assert type(shared) is type(STATE[name]) and shared.is_shared()
        assert torch.equal(tensor, STATE[name])


OUTSIDE: dict[str, Callable[[Any], Any]] = {
    "x.data": lambda t: [x := torch.ones(2, 3), setattr(x, "data", t), x + 1][-1],
    "to_dlpack": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "torch.Tensor": torch.Tensor,
    "_make_subclass": lambda t: torch.Tensor._make_subclass(torch.nn.Parameter, t),
}


@pytest.mark.parametrize("used_before", [False, True])
def test_where_torch_asks_no_class(used_before: bool) -> None:
    """The memory is the placeholder's own: the tensor's if that is loaded, else an error; never a wrong number."""
    for name, use in OUTSIDE.items():
        lazy = zerocopy.lazy_load(FILE)["w"]
        if used_before:
            lazy + 0
        found = outcome(lambda use=use, lazy=lazy: use(lazy))
        if found[0] == "error":
            assert found[1] is RuntimeError
            assert not used_before or name in ("torch.Tensor", "_make_subclass"), found
        else:
            assert_same(found[1].detach() + 0, use(STATE["w"].clone()).detach() + 0)


MADE: dict[str, Callable[[type], Any]] = {
    "of a list": lambda cls: cls([1.0, 2.0]),
    "of a shape": lambda cls: [t := cls(2), t.fill_(3.0)][0],
    "as_subclass": lambda cls: torch.arange(2.0).as_subclass(cls),
    "_make_subclass": lambda cls: torch.Tensor._make_subclass(cls, torch.arange(2.0)),
}
DONE: Uses = {
    "operator": lambda t: torch.ones(2) * t + t,
    "in place": lambda t: [t.add_(1), t.__setitem__(0, 5.0), t.tolist(), t[1], repr(t)],
    "copies": lambda t: [t.numpy(), copy.deepcopy(t), pickle.loads(pickle.dumps(t))],
    "save": lambda t: [file := io.BytesIO(), zerocopy.save(t, file), zerocopy.load(file.getbuffer())][-1],
    "Parameter": torch.nn.Parameter,
    "plain": lambda t: t.as_subclass(torch.Tensor),
    "gradient": lambda t: [
        x := torch.ones(2, requires_grad=True),
        (x.as_subclass(type(t)) * t).sum().backward(),
        x.grad,
    ],
}


@pytest.mark.parametrize("way", MADE)
def test_new_tensor_of_the_class_of_a_placeholder_works(way: str) -> None:
    """Libraries keep a class with ``type(x)(...)`` or ``as_subclass(type(x))``."""
    cls = type(zerocopy.lazy_load(FILE)["w"])
    assert type(MADE[way](cls).materialize()) is torch.Tensor
    for use in DONE.values():
        assert_same(use(MADE[way](cls)), use(MADE[way](torch.Tensor)))


SPAWNED = """
import sys, torch, torch.multiprocessing as mp, zerocopy
def child(alone, together):
    print(alone.tolist(), {name: tensor.tolist() for name, tensor in together.items()}, flush=True)
if __name__ == "__main__":
    lazy = zerocopy.lazy_load(sys.argv[1])
    context = mp.get_context(sys.argv[2])
    process = context.Process(target=child, args=(lazy["w"], {name: lazy[name] for name in ("frozen", "i")}))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.slow("starts Python")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_argument_of_a_process_that_is_started_anew(save: Saver, tmp_path: Path, method: str) -> None:
    (tmp_path / "program.py").write_text(SPAWNED)
    command = [sys.executable, tmp_path / "program.py", save(STATE), method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    together = {name: STATE[name].tolist() for name in ("frozen", "i")}
    assert done.stdout == f"{STATE['w'].tolist()} {together}\n", done.stderr


def test_a_fork_with_a_placeholder(save: Saver, forked: Any) -> None:
    """A child of a fork loads it by itself."""
    done = forked(
        """
        import os, sys, torch, zerocopy
        lazy = zerocopy.lazy_load(sys.argv[1])
        if os.fork() == 0:
            os._exit(int(lazy["w"].sum()) + 10)
        status = os.waitstatus_to_exitcode(os.wait()[1])
        assert not lazy["w"].is_loaded and status - 10 == int(lazy["w"].sum()), status
        """,
        save(STATE),
    )
    assert done.returncode == 0, done.stderr
