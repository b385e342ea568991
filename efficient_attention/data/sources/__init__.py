"""Readers of documents and tables: text files, JSON, images, ArrayRecord, Wikipedia dumps and TFDS datasets."""
