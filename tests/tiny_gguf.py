"""A random two-layer Llama as a GGUF file, written with the gguf library."""

from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, LAYERS, FFN, CONTEXT = 32, 4, 2, 2, 48, 128
_NORMAL, _CONTROL = 1, 3


def write(path: Path, *, architecture: str = "llama", pre: str = "smollm", seed: int = 0) -> Path:
    """Write the file; its vocabulary is bytes, a few merges and two control tokens."""
    tokens, merges = _vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL] * 2 + [_NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|a|>{{ m.content }}<|b|>{% endfor %}")
    for name, value in _tensors(len(tokens), seed).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary() -> tuple[list[str], list[str]]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - 188)]
    merges = [("Ċ", "Ċ"), ("h", "i")]
    return ["<|a|>", "<|b|>", *alphabet, *(a + b for a, b in merges)], [
        f"{a} {b}" for a, b in merges
    ]


def _tensors(vocab: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    head = HIDDEN // HEADS

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    tensors = {"token_embd.weight": random(vocab, HIDDEN), "output_norm.weight": 1 + random(HIDDEN)}
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        tensors[name + "attn_norm.weight"] = 1 + random(HIDDEN)
        tensors[name + "ffn_norm.weight"] = 1 + random(HIDDEN)
        tensors[name + "attn_q.weight"] = random(HIDDEN, HIDDEN)
        tensors[name + "attn_k.weight"] = random(KV_HEADS * head, HIDDEN)
        tensors[name + "attn_v.weight"] = random(KV_HEADS * head, HIDDEN)
        tensors[name + "attn_output.weight"] = random(HIDDEN, HIDDEN)
        tensors[name + "ffn_gate.weight"] = random(FFN, HIDDEN)
        tensors[name + "ffn_up.weight"] = random(FFN, HIDDEN)
        tensors[name + "ffn_down.weight"] = random(HIDDEN, FFN)
    return tensors
