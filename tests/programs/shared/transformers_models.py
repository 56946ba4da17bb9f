"""A tokenizer, a model of the library's, one with code of its own, and a pipeline over the first two."""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

sys.path.append(str(Path(__file__).parent.parent))
from digests import digest

CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel

class OwnConfig(PretrainedConfig):
    model_type = "own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(64, 64)
        self.post_init()

    def forward(self, x):
        return self.linear(x)
"""
place = Path(sys.argv[1])


def make() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    BertForSequenceClassification(config).save_pretrained(place / "bert")
    words = {"[PAD]": 0, "[UNK]": 1, "zero": 2, "copies": 3}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        place / "bert"
    )
    code: dict = {"__name__": "own_model"}
    exec(CODE, code)
    config = code["OwnConfig"](
        auto_map={"AutoConfig": "own_model.OwnConfig", "AutoModel": "own_model.OwnModel"}
    )
    code["OwnModel"](config).save_pretrained(place / "own")
    (place / "own" / "own_model.py").write_text(CODE)


if not place.exists():
    make()
else:
    tokenizer = AutoTokenizer.from_pretrained(place / "bert")
    model = AutoModelForSequenceClassification.from_pretrained(place / "bert")
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    print(classify(["zero copies", "one copy"]), classify.model is model, classify.tokenizer is tokenizer)
    print(type(model).__name__, model.training, model.config.num_labels, digest(model))
    print([name for name, parameter in model.named_parameters() if not parameter.requires_grad])
    own = AutoModel.from_pretrained(place / "own", trust_remote_code=True)
    print(type(own).__module__.partition(".")[0], type(own).__name__, digest(own))
    model.classifier.weight.data.zero_()  # nobody else sees it
    try:
        AutoModel.from_pretrained(place / "absent")
    except OSError as error:
        print(type(error).__name__, error)
