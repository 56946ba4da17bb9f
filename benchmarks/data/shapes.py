"""Names and shapes of the models whose checkpoints are measured: nothing but lists, no tensor is made here.

Every function takes ``shrink``: 1 gives the real sizes, a larger power of two the small ones of the suite ``quick``.
"""

from __future__ import annotations

from collections.abc import Iterator

Shape = tuple[int, ...]
Entry = tuple[str, Shape]


def bert(shrink: int = 1) -> Iterator[Entry]:
    """Yield BERT-base, uncased: 199 tensors, 109 482 240 numbers (438 MB as float32)."""
    hidden, inner, vocab = 768 // shrink, 3072 // shrink, 30522
    yield "embeddings.word_embeddings.weight", (vocab, hidden)
    yield "embeddings.position_embeddings.weight", (512, hidden)
    yield "embeddings.token_type_embeddings.weight", (2, hidden)
    yield from _affine("embeddings.LayerNorm", (hidden,))
    for i in range(12):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            yield from _affine(f"{layer}.attention.self.{part}", (hidden, hidden))
        yield from _affine(f"{layer}.attention.output.dense", (hidden, hidden))
        yield from _affine(f"{layer}.attention.output.LayerNorm", (hidden,))
        yield from _affine(f"{layer}.intermediate.dense", (inner, hidden))
        yield from _affine(f"{layer}.output.dense", (hidden, inner))
        yield from _affine(f"{layer}.output.LayerNorm", (hidden,))
    yield from _affine("pooler.dense", (hidden, hidden))


def llm(shrink: int = 1) -> Iterator[Entry]:
    """Yield a Llama of 32 layers: 291 tensors, 2 GiB as bfloat16."""
    hidden, inner, vocab = 1600 // shrink, 4192 // shrink, 32000
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(32):
        yield from _llama_layer(i, hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def matrix(shrink: int = 1) -> Iterator[Entry]:
    """Yield one tensor of 1 GiB as float32, 16 KiB a row."""
    yield "weight", (65536 // shrink, 4096)


def streamed(nbytes: int) -> Iterator[Entry]:
    """Yield the layers of a Llama, about ``nbytes`` of them as float32: as many as are in it, 205 MB each."""
    for i in range(max(1, nbytes // (51_384_320 * 4))):
        yield from _llama_layer(i, 2048, 5632)


def moe(shrink: int = 1) -> Iterator[Entry]:
    """Yield a mixture of experts, 48 layers of 128 narrow ones: 18 867 tensors, 311 MB as bfloat16."""
    hidden, inner, vocab = 128, 64, 5120
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(48 // shrink):
        layer = f"model.layers.{i}"
        for part in "qkvo":
            yield f"{layer}.self_attn.{part}_proj.weight", (hidden, hidden)
        for norm in ("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", (hidden,)
        yield f"{layer}.mlp.gate.weight", (128, hidden)
        for expert in range(128):
            yield f"{layer}.mlp.experts.{expert}.gate_proj.weight", (inner, hidden)
            yield f"{layer}.mlp.experts.{expert}.up_proj.weight", (inner, hidden)
            yield f"{layer}.mlp.experts.{expert}.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def lora(shrink: int = 1) -> Iterator[Entry]:
    """Yield 25 adapters of rank 8 on one model of 25 layers: 5000 tensors, 21 MB as float32."""
    rank, hidden = 8, 128
    for adapter in range(max(1, 25 // shrink)):
        for i in range(25):
            for part in "qkvo":
                stem = f"base_model.model.model.layers.{i}.self_attn.{part}_proj"
                yield f"{stem}.lora_A.adapter{adapter}.weight", (rank, hidden)
                yield f"{stem}.lora_B.adapter{adapter}.weight", (hidden, rank)


def _llama_layer(i: int, hidden: int, inner: int) -> Iterator[Entry]:
    layer = f"model.layers.{i}"
    for part in "qkvo":
        yield f"{layer}.self_attn.{part}_proj.weight", (hidden, hidden)
    yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
    yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
    yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield f"{layer}.input_layernorm.weight", (hidden,)
    yield f"{layer}.post_attention_layernorm.weight", (hidden,)


def _affine(stem: str, shape: Shape) -> Iterator[Entry]:
    yield f"{stem}.weight", shape
    yield f"{stem}.bias", shape[:1]
