"""Makes the rig's tokenizer: `python mktok.py DIR` (needs `tokenizers`).

A byte-level BPE in which each word the server can emit is exactly one token, so that a tool that
re-tokenises text must count what the server counted.  Writes tokenizer.json, tokenizer_config.json,
config.json (for AutoTokenizer) and vocab.tsv (for truth_server --vocab).
"""

import json
import pathlib
import sys
import sysconfig

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])
text = [p.read_text(errors="ignore") for p in sorted(stdlib.glob("*.py"))[:120]]

tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
tok.train_from_iterator(
    text,
    trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<s>", "</s>", "<unk>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
tok.save(str(out / "tokenizer.json"))
chat = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
(out / "tokenizer_config.json").write_text(
    json.dumps(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "model_max_length": 32768,
            "clean_up_tokenization_spaces": False,
            "chat_template": chat,
        }
    )
)
(out / "config.json").write_text(
    json.dumps({"model_type": "llama", "vocab_size": tok.get_vocab_size(), "max_position_embeddings": 32768})
)
words = []
for piece, i in sorted(tok.get_vocab().items(), key=lambda kv: kv[1]):
    if piece.startswith("Ġ") and piece[1:].isascii() and piece[1:].isalpha() and len(piece) >= 3:
        w = " " + piece[1:]
        if tok.encode("a" + w + w).ids[-2:] == [i, i]:
            words.append((i, w))
words = words[:200]
(out / "vocab.tsv").write_text("".join(f"{i}\t{w}\n" for i, w in words))
sample = "".join(w for _, w in words)
assert len(tok.encode(sample).ids) == len(words), "a server word is not one token"
print(f"{len(words)} words, vocabulary {tok.get_vocab_size()}")
