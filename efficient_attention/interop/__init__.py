"""Checkpoints in and out: Hugging Face folders, folders of small models, and the tokenizers that travel with them."""
