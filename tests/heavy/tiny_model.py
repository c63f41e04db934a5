"""A Llama of a few million random weights with a tokenizer of made-up words: run by the Python that has torch.

    python tests/heavy/tiny_model.py FOLDER

Attention must matter for the answer, or wrong KV would go unseen: weights are drawn wide (see INITIALIZER_RANGE).
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 8192
INITIALIZER_RANGE = 0.15


def make_tokenizer(folder: Path) -> None:
    """Byte-level BPE over words of syllables: every id is text, every text has ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    source = random.Random(7)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    words = ["".join(source.choices(syllables, k=source.randint(2, 4))) for _ in range(9000)]
    text = [" ".join(source.choices(words, k=1000)) for _ in range(200)]
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


def make_weights(folder: Path) -> None:
    """Two layers, two KV heads of 64; seeded."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        initializer_range=INITIALIZER_RANGE,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    make_tokenizer(target)
    make_weights(target)
