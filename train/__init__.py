"""How shohin's own small model is made: sources, tokenizer, quantisation-aware training, evaluation, export."""
