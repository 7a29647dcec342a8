"""Text in, text out: validation, templates, tokenizer, detokeniser."""
