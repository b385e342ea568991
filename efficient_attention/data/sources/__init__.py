"""Readers of documents and tables: text, JSON, images, ArrayRecord, Wikipedia dumps and TFDS datasets."""
