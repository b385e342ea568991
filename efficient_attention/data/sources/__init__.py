"""Sources of documents: text, JSON, image and ArrayRecord files, TFDS data sets, the standard library."""
