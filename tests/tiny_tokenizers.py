"""Small tokenizers of each kind, built with the tokenizers library."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors as post_processors

SPACE = "\u2581"


def byte_level() -> Tokenizer:
    """Every byte a token, a few merges, two special tokens, two plain added ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate(alphabet)}
    merges = [("l", "l"), ("h", "e"), ("he", "ll"), ("Ġ", "w"), ("ã", "ģ")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    fast = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken("<|start|>"), AddedToken("<|end|>")])
    fast.add_tokens([AddedToken("<think>", special=False), AddedToken("déjà", special=False)])
    return fast


def sentencepiece(*, bos: bool = True, prefix_space: bool = True) -> Tokenizer:
    """Llama-2-like: U+2581 for spaces, bytes for what is unknown, perhaps a begin token."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    merges = [(SPACE, "h"), (SPACE + "h", "i"), ("y", "o")]
    for char in ["a", "b", "h", "i", "o", "y", "u", "é", SPACE]:
        vocab[char] = len(vocab)
    for left, right in merges:
        vocab[left + right] = len(vocab)
    fast = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    replace = normalizers.Replace(" ", SPACE)
    fast.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prefix_space else replace
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
    fast.add_special_tokens([AddedToken(name) for name in ("<unk>", "<s>", "</s>")])
    if bos:
        fast.post_processor = post_processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return fast


def metaspace() -> Tokenizer:
    """Unigram with a Metaspace decoder, as T5-like vocabularies have."""
    pieces = [("<unk>", 0.0), (SPACE + "ab", -1.0), ("c", -1.5), (SPACE, -2.0), ("a", -3.0)]
    fast = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    return fast


def wordpiece() -> Tokenizer:
    """BERT-like, with pieces that continue a word."""
    vocab = {"[UNK]": 0, "play": 1, "##ing": 2, "the": 3, "game": 4, ".": 5}
    fast = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return fast


def wordlevel(num_words: int = 50) -> Tokenizer:
    """Whole words w0, w1, ... and no decoder at all."""
    vocab = {"[UNK]": 0, **{f"w{i}": i + 1 for i in range(num_words)}, "end": num_words + 1}
    fast = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast
