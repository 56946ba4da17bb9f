"""from_pretrained from a local folder of .bin files: one file, and shards with an index."""

import sys
from pathlib import Path

import torch
import witness  # noqa: F401
from digests import digest
from huggingface_hub import save_torch_state_dict
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

place = Path(sys.argv[1])
tokens = torch.arange(1, 13).view(2, 6)


def save(model, folder: Path, largest: str) -> None:
    model.config.save_pretrained(folder)
    save_torch_state_dict(model.state_dict(), folder, max_shard_size=largest, safe_serialization=False)


torch.manual_seed(0)
bert = BertModel(
    BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
)
gpt2 = GPT2LMHeadModel(
    GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=500, n_positions=64, bos_token_id=0, eos_token_id=0)
)

for kind, auto, model in (("bert", AutoModel, bert), ("gpt2", AutoModelForCausalLM, gpt2)):
    for largest in ("1GB", "150KB"):
        folder = place / f"{kind}-{largest}"
        save(model, folder, largest)
        loaded = auto.from_pretrained(folder).eval()
        with torch.no_grad():
            answer = loaded(tokens)[0]
        print(kind, len(list(folder.glob("*.bin"))), "files", digest(loaded), digest(answer))

# Weights that came from files go on to be trained in place, and are saved.
tuned = AutoModelForCausalLM.from_pretrained(place / "gpt2-150KB")
tuned(tokens, labels=tokens).loss.backward()
torch.optim.AdamW(tuned.parameters(), lr=1e-2).step()
tuned.save_pretrained(place / "tuned")
print("tuned", digest(tuned), digest(AutoModelForCausalLM.from_pretrained(place / "tuned")))
half = AutoModel.from_pretrained(place / "bert-1GB", dtype=torch.bfloat16)
print("half", digest(half.float()))
