"""Models, tokenizers and configurations of transformers: tiny, made and saved by the catalog itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from share_catalog.case import explicit, patched

NEEDS = ("transformers",)


def _sizes() -> dict[str, int]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
    return {**sizes, "intermediate_size": 128, "max_position_embeddings": 80}


def _bert(folder: Path, **options: Any) -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**_sizes(), **options)).save_pretrained(folder / "model")


def _gpt2(folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=300, n_positions=64)
    ).save_pretrained(folder / "model")


def _llama(folder: Path, tied: bool = True) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**_sizes(), num_key_value_heads=2, tie_word_embeddings=tied)
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def _t5(folder: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=300, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    T5ForConditionalGeneration(config).save_pretrained(folder / "model")


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "zero": 2, "copies": 3, "[MASK]": 4}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "model")


def _bert_with_tokenizer(folder: Path) -> None:
    _bert(folder)
    _tokenizer(folder)


def _forward(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(10)[None])[0]


@patched(needs=NEEDS, prepare=_bert, is_shared=True, always=True, after=_forward)
def bert_for_masked_lm(folder: Path) -> Any:
    """The decoder is tied to the embeddings."""
    from transformers import BertForMaskedLM

    return BertForMaskedLM.from_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=_bert, is_shared=True)
def bert_in_half_precision(folder: Path) -> Any:
    from transformers import BertModel

    return BertModel.from_pretrained(folder / "model", dtype=torch.bfloat16, add_pooling_layer=False)


@patched(needs=NEEDS, prepare=_bert, always=True)
def bert_with_a_new_head(folder: Path) -> Any:
    """The head is drawn at random, by the caller's seed."""
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification.from_pretrained(folder / "model", num_labels=3), torch.rand(3)


@patched(needs=NEEDS, prepare=_bert)
def bert_with_a_new_head_after_a_seed(folder: Path) -> Any:
    from transformers import BertForTokenClassification, set_seed

    set_seed(torch.initial_seed() + 5)
    return BertForTokenClassification.from_pretrained(folder / "model", num_labels=5), torch.rand(3)


@patched(needs=NEEDS, prepare=_bert)
def bert_with_loading_info(folder: Path) -> Any:
    from transformers import BertModel

    return BertModel.from_pretrained(folder / "model", output_loading_info=True, add_pooling_layer=False)


@patched(needs=NEEDS, prepare=_bert)
def bert_with_a_configuration_of_the_caller(folder: Path) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig.from_pretrained(folder / "model", hidden_dropout_prob=0.3)
    model = BertForMaskedLM.from_pretrained(folder / "model", config=config)
    return model, config


@patched(needs=NEEDS, prepare=_bert)
def bert_with_another_attention(folder: Path) -> Any:
    from transformers import AutoModelForMaskedLM

    return AutoModelForMaskedLM.from_pretrained(folder / "model", attn_implementation="eager")


@patched(needs=NEEDS, prepare=_bert)
def bert_twice_in_one_program(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    student, teacher = (BertForMaskedLM.from_pretrained(folder / "model") for _ in range(2))
    with torch.no_grad():
        student.bert.embeddings.word_embeddings.weight.zero_()
    return student, teacher


@patched(needs=NEEDS, prepare=_bert, change=lambda folder: _bert(folder, hidden_act="relu"))
def bert_with_its_configuration_rewritten(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    return BertForMaskedLM.from_pretrained(folder / "model")


def _other_weights(folder: Path) -> None:
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(folder / "model")
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.fill_(0.25)
    model.save_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=_bert, change=_other_weights)
def bert_with_its_weights_rewritten(folder: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(str(folder / "model"), add_pooling_layer=False)


@patched(needs=NEEDS, prepare=_bert)
def bert_under_no_grad(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    with torch.no_grad():
        return BertForMaskedLM.from_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=_gpt2, is_shared=True, after=_forward)
def gpt2(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model")


def _generate(model: Any) -> Any:
    return model.generate(torch.arange(1, 5)[None], max_new_tokens=5, do_sample=False, pad_token_id=0)


@patched(needs=NEEDS, prepare=_llama, after=_generate)
def llama_with_tied_embeddings(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=lambda folder: _llama(folder, False))
def llama_without_ties(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=_t5)
def t5(folder: Path) -> Any:
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration.from_pretrained(folder / "model")


def _train(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def _bert_without_dropout(folder: Path) -> None:
    _bert(folder, hidden_dropout_prob=0, attention_probs_dropout_prob=0)


@patched(needs=NEEDS, prepare=_bert_without_dropout, after=_train)
def bert_trained_for_a_step(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    return BertForMaskedLM.from_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=_bert)
def bert_saved_where_it_was_loaded(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(folder / "model")
    model.save_pretrained(folder / "model")
    return model, BertForMaskedLM.from_pretrained(folder / "model").state_dict()


@patched(
    needs=NEEDS,
    prepare=_tokenizer,
    is_shared=True,
    always=True,
    after=lambda made: made(["zero copies", "x"]),
)
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "model")


@patched(needs=NEEDS, prepare=_tokenizer, after=lambda made: made("zero new copies")["input_ids"])
def tokenizer_with_added_tokens(folder: Path) -> Any:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(folder / "model", extra_special_tokens={"new_token": "new"})
    made.add_tokens(["other"])
    return made


def _other_words(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    path.write_text(path.read_text().replace('"zero"', '"none"'))


@patched(
    needs=NEEDS, prepare=_tokenizer, change=_other_words, after=lambda made: made("zero none")["input_ids"]
)
def tokenizer_with_its_words_rewritten(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "model")


@explicit(needs=NEEDS, prepare=_bert, arguments=lambda folder: (str(folder / "model"),))
def configuration(path: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(path)


@explicit(needs=NEEDS, prepare=_bert, arguments=lambda folder: (str(folder / "model"),))
def model_and_configuration_of_one_call(path: str) -> Any:
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(path)
    return {"model": model, "config": model.config, "state": model.state_dict()}


@explicit(needs=NEEDS, prepare=_bert, arguments=lambda folder: (str(folder / "model"),))
def student_and_teacher_of_transformers(path: str) -> Any:
    import copy

    from transformers import BertForMaskedLM

    student = BertForMaskedLM.from_pretrained(path)
    return student, copy.deepcopy(student), BertForMaskedLM.from_pretrained(path)


@patched(needs=NEEDS, prepare=_bert_with_tokenizer, after=lambda made: made("zero [MASK]", top_k=2))
def pipeline_of_transformers(folder: Path) -> Any:
    import transformers

    return transformers.pipeline("fill-mask", model=str(folder / "model"))


@patched(needs=NEEDS, prepare=_bert_with_tokenizer)
def pipeline_of_loaded_parts(folder: Path) -> Any:
    import transformers

    model = transformers.BertForMaskedLM.from_pretrained(folder / "model")
    words = transformers.AutoTokenizer.from_pretrained(folder / "model")
    made = transformers.pipeline("fill-mask", model=model, tokenizer=words)
    return made.model is model, made.tokenizer is words, model, words


def _sharded(folder: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**_sizes())).save_pretrained(folder / "model", max_shard_size="100KB")


@patched(needs=NEEDS, prepare=_sharded)
def bert_in_shards(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    return BertForMaskedLM.from_pretrained(folder / "model")


OWN = """
import torch
from transformers import PretrainedConfig, PreTrainedModel

class OwnConfig(PretrainedConfig):
    model_type = "own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(64, 64)
        self.scale = SCALE
        self.post_init()

    def forward(self, x):
        return self.linear(x) * self.scale
"""


def _own(folder: Path, scale: int = 1) -> None:
    import json

    from safetensors.torch import save_file

    place = folder / "model"
    place.mkdir(exist_ok=True)
    (place / "modeling_own.py").write_text(OWN.replace("SCALE", str(scale)))
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    config = {"model_type": "own", "auto_map": classes, "architectures": ["OwnModel"]}
    (place / "config.json").write_text(json.dumps(config))
    state = {"linear.weight": torch.arange(4096.0).reshape(64, 64), "linear.bias": torch.ones(64)}
    save_file(state, place / "model.safetensors", metadata={"format": "pt"})


@patched(needs=NEEDS, prepare=_own, after=lambda model: model(torch.ones(1, 64)))
def model_with_code_of_its_own(folder: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder / "model", trust_remote_code=True)


@patched(
    needs=NEEDS,
    prepare=_own,
    change=lambda folder: _own(folder, 3),
    after=lambda model: model(torch.ones(1, 64)),
)
def model_with_its_code_rewritten(folder: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder / "model", trust_remote_code=True)


def _missing_weights(folder: Path) -> None:
    _bert(folder)
    shutil.move(folder / "model" / "model.safetensors", folder / "away")


def _message(folder: Path) -> Any:
    from transformers import BertForMaskedLM

    try:
        return BertForMaskedLM.from_pretrained(folder / "model")
    except Exception as error:
        return type(error).__name__


@patched(
    needs=NEEDS, prepare=_missing_weights,
    change=lambda folder: shutil.move(folder / "away", folder / "model" / "model.safetensors"),
)  # fmt: skip
def weights_that_come_later(folder: Path) -> Any:
    return _message(folder)
