"""CLIP: its two towers, the block they share with its hand-written backward, and its tokenizer."""
