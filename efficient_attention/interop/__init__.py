"""Import, export and compression of checkpoints and their tokenizers: Hugging Face folders, compact exports."""
