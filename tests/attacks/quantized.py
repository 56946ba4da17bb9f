"""Quantized tensors whose scales, zero points and sizes do not fit together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from assembler import Code, call, name, ordered_dict, storage, tensor

from attacks.attack import Attack, Expected
from attacks.tensor_parts import BYTES, REPEATED, SCALES, UTILS, attacks, doubled, file, floats, layout, longs

EQUAL, FORMAT = Expected.EQUAL, Expected.FORMAT

NEEDS_QUANTIZED = {"needs": f"{UTILS}._rebuild_qtensor"}


def contiguous(size: Any) -> tuple[int, ...]:
    """Return strides, for whatever is in place of a size."""
    items = size if isinstance(size, tuple) and all(isinstance(n, int) for n in size) else (1,)
    return tuple(math.prod(items[i + 1 :]) for i in range(len(items)))


def quantized(
    quantizer: Any = (0.5, 3),
    scheme: str | Code = "per_tensor_affine",
    size: Any = (64,),
    stride: Any = None,
    offset: Any = 0,
    kind: str = "QUInt8Storage",
    over: Any = None,
    grad: Any = False,
    hooks: Any = None,
    more: tuple[Any, ...] = (),
    zeros: tuple[int, ...] = (),
) -> bytes:
    """Return a file of a quantized tensor over 64 bytes."""
    numel = len(BYTES) // (4 if kind == "QInt32Storage" else 1)
    over = storage("bytes", kind, numel=numel) if over is None else over
    scheme = scheme if isinstance(scheme, Code) else name("torch", scheme)
    parameters = (scheme, *quantizer) if isinstance(quantizer, tuple) else quantizer
    stride = contiguous(size) if stride is None else stride
    hooks = ordered_dict() if hooks is None else hooks
    made = call(name(UTILS, "_rebuild_qtensor"), over, offset, size, stride, parameters, grad, hooks, *more)
    return file(made, {"zeros": zeros})


def channels(
    scales: Any = 4,
    zeros: Any = (0, 2, 1, 3),
    axis: Any = 0,
    size: tuple[int, ...] = (4, 16),
    scheme: str = "per_channel_affine",
) -> bytes:
    """Return a file of a tensor that is quantized by channel."""
    if isinstance(scales, int):
        scales = tensor(storage("scales", "DoubleStorage", numel=len(SCALES)), 0, (scales,), (1,))
    integers = isinstance(zeros, tuple)
    points = longs("zeros", zeros) if integers else zeros
    return quantized((scales, points, axis), scheme, size, zeros=zeros if integers else ())


def _integers(dtype: torch.dtype, size: tuple[int, ...] = (-1,)) -> torch.Tensor:
    return torch.frombuffer(bytearray(BYTES), dtype=dtype).view(size)


def _valid_quantized() -> Iterable[Attack]:
    for kind, dtype in (("QUInt8", torch.uint8), ("QInt8", torch.int8), ("QInt32", torch.int32)):
        yield Attack(
            f"a valid tensor quantized by {kind}",
            lambda kind=kind: quantized(kind=f"{kind}Storage", size=(16 if kind == "QInt32" else 64,)),
            EQUAL,
            value=lambda dtype=dtype: torch._make_per_tensor_quantized_tensor(_integers(dtype), 0.5, 3),
            **NEEDS_QUANTIZED,
        )
    yield Attack(
        "a valid tensor quantized by channel",
        channels,
        EQUAL,
        value=lambda: torch._make_per_channel_quantized_tensor(
            _integers(torch.uint8, (4, 16)), torch.tensor(SCALES, dtype=torch.float64),
            torch.tensor((0, 2, 1, 3)), 0,
        ),
        **NEEDS_QUANTIZED,
    )  # fmt: skip


QUANTIZED: dict[str, dict[str, Any]] = {
    **{
        f"a scale of {scale}": {"quantizer": (scale, 3)}
        for scale in (math.nan, math.inf, -1.0, 0.0, "x", None)
    },
    "a scale of 10^400": {"quantizer": (10**400, 3)},
    "a scale in lists doubled 40 times": {"quantizer": (doubled(40), 3)},
    "a zero point in lists doubled 40 times": {"quantizer": (0.5, doubled(40))},
    "a scheme of lists doubled 40 times": {"scheme": doubled(40)},
    "a scale that is a tensor": {"quantizer": (floats(1), 3)},
    **{f"a zero point of {point}": {"quantizer": (0.5, point)} for point in (256, -1, "x", None, 2.5)},
    "a zero point of 2^40": {"quantizer": (0.5, 2**40)},
    "a zero point of 2^64": {"quantizer": (0.5, 2**64)},
    "a zero point of 128 for 8 bits with a sign": {"quantizer": (0.5, 128), "kind": "QInt8Storage"},
    "a zero point of 2^31 for 32 bits": {"quantizer": (0.5, 2**31), "kind": "QInt32Storage", "size": (16,)},
    "a zero point of 16 for 4 bits": {"quantizer": (0.5, 16), "kind": "QUInt4x2Storage"},
    "a scheme that is a dtype": {"scheme": "float32"},
    "a scheme that is a layout": {"scheme": layout("torch.strided")},
    "a scheme that is None": {"scheme": Code(b"N")},
    "a symmetric scheme": {"scheme": "per_tensor_symmetric"},
    "the scheme of channels, with a number": {"scheme": "per_channel_affine", "quantizer": (0.5, 3, 0)},
    "no parameters": {"quantizer": ()},
    "no zero point": {"quantizer": (0.5,)},
    "a parameter too many": {"quantizer": (0.5, 3, 4)},
    "parameters that are None": {"quantizer": Code(b"N")},
    "floats for a storage": {"over": storage(), "size": (16,)},
    "None for a storage": {"over": Code(b"N")},
    "a tensor for a storage": {"over": tensor()},
    "one element more than its storage": {"size": (65,)},
    "1000 elements over 64 bytes": {"size": (1000,)},
    "17 elements of 32 bits over 64 bytes": {"kind": "QInt32Storage", "size": (17,)},
    "129 elements of 4 bits over 64 bytes": {"kind": "QUInt4x2Storage", "size": (129,)},
    "an offset beyond its storage": {"size": (1,), "offset": 64},
    "an offset of -1": {"offset": -1},
    "an offset that is text": {"offset": "0"},
    "a size of -1": {"size": (-1,)},
    "a size of two negative numbers": {"size": (-8, -8)},
    "a size that wraps": {"size": (2**32, 2**32), "stride": (0, 0)},
    "a size in a list": {"size": [64], "stride": (1,)},
    "two sizes and one stride": {"size": (8, 8), "stride": (8,)},
    "a stride of -1": {"stride": (-1,)},
    "a stride of 2^62": {"size": (5,), "stride": (2**62,)},
    "a stride of 0, repeating its storage": {"size": (2**36,), "stride": (0,)},
    "a gradient": {"grad": True},
    "hooks": {"hooks": ordered_dict((0, 1))},
    "an argument too many": {"more": (1,)},
}
CHANNELS: dict[str, dict[str, Any]] = {
    "one scale for 16 of them": {"scales": 1, "zeros": (1,) * 16, "size": (16, 4)},
    "one scale and zero point for 16 of them": {"scales": 1, "zeros": (1,), "size": (16, 4)},
    "three scales for four of them": {"scales": 3},
    "three zero points for four of them": {"zeros": (0, 2, 1)},
    "a zero point of -1": {"zeros": (0, 2, -1, 3)},
    "a zero point of 256": {"zeros": (0, 2, 256, 3)},
    "a zero point of 2^40": {"zeros": (0, 2, 2**40, 3)},
    "scales that are None": {"scales": Code(b"N")},
    "scales in lists doubled 26 times": {"scales": doubled(26, 0.5)},
    "zero points in lists doubled 26 times": {"zeros": doubled(26)},
    "an axis of lists doubled 40 times": {"axis": doubled(40)},
    "scales of two dimensions": {"scales": tensor(None, 0, (4, 4), (4, 1))},
    "scales that repeat their storage": {"scales": REPEATED},
    "scales that are sparse": {
        "scales": call(
            name(UTILS, "_rebuild_sparse_tensor"), layout(),
            (tensor(storage("bytes", "LongStorage", numel=8), 0, (1, 0), (0, 1)), floats(0), (2**40,)),
        ),
    },
    "a scale of zero": {"scales": tensor(None, 0, (4,), (1,))},
    "a scale that is no number": {"scales": [0.5, 0.5, 0.5, "x"]},
    "axis 9": {"axis": 9},
    "axis 2, of two": {"axis": 2},
    "axis -1": {"axis": -1},
    "axis -7": {"axis": -7},
    "axis 1, of another length": {"axis": 1},
    "an axis that is text": {"axis": "x"},
    "an axis that is None": {"axis": None},
    "an axis of 2^64": {"axis": 2**64},
    "more elements than its storage": {"size": (4, 17)},
}  # fmt: skip


def _titled(what: str, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{what} with {fault}": fields for fault, fields in cases.items()}


QUANTIZED_TENSORS = (
    *_valid_quantized(),
    *attacks(quantized, FORMAT, _titled("a quantized tensor", QUANTIZED), **NEEDS_QUANTIZED),
    *attacks(channels, FORMAT, _titled("a tensor quantized by channel,", CHANNELS), **NEEDS_QUANTIZED),
)
