"""Checkpoints of other libraries in and out: Hugging Face folders of the encoders that the world fine-tunes."""
