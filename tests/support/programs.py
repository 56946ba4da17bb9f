"""Archives of torch.export made by hand, which every release reads: weights, constants, files within."""

from __future__ import annotations

import json
from typing import Any

from assembler import DATA, Entry, archive

FLOAT = 7


def meta(
    shape: Any = (16,), stride: Any = (1,), offset: int = 0, dtype: Any = FLOAT, **more: Any
) -> dict[str, Any]:
    """Return the description of a tensor as ``torch._export.serde.schema.TensorMeta`` writes it."""
    return {
        "dtype": dtype,
        "sizes": [{"as_int": n} for n in shape],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": n} for n in stride],
        "storage_offset": {"as_int": offset},
        "layout": 7,
        **more,
    }  # fmt: skip


def payload(
    path: Any = "weight_0", parameter: Any = False, pickled: Any = False, **tensor: Any
) -> dict[str, Any]:
    """Return an item of a list of weights or constants."""
    described = (
        {"tensor_meta": tensor.pop("tensor_meta")}
        if "tensor_meta" in tensor
        else {"tensor_meta": meta(**tensor)}
    )
    return {"path_name": path, "is_param": parameter, "use_pickle": pickled, **described}


def listed(config: Any) -> bytes:
    """Return a list as JSON. Bytes stay what they are."""
    return config if isinstance(config, bytes) else json.dumps({"config": config}).encode()


def entries(
    weights: Any = None,
    constants: Any = None,
    records: dict[str, bytes] | None = None,
    *,
    model: str = "model",
    version: bytes = b"0",
) -> list[Entry]:
    """Return the records of an archive with one program. `records` are the data, by their names."""
    weights = {"weight": payload()} if weights is None else weights
    return [
        Entry("x/archive_format", b"pt2"),
        Entry("x/archive_version", version),
        Entry("x/byteorder", b"little"),
        Entry("x/.data/version", b"3\n"),
        Entry(f"x/models/{model}.json", b"{}"),
        *(
            Entry(f"x/{name}", data)
            for name, data in ({"data/weights/weight_0": DATA} | (records or {})).items()
        ),
        Entry(f"x/data/weights/{model}_weights_config.json", listed(weights)),
        Entry(f"x/data/constants/{model}_constants_config.json", listed(constants or {})),
    ]


def program(*arguments: Any, **options: Any) -> bytes:
    """Return an archive with one program, as :func:`entries` describes it."""
    return archive(entries(*arguments, **options))
