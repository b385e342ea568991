"""Imports, exports and compresses model checkpoints and their tokenizers: Hugging Face folders, and this project's
compact exports.
"""
