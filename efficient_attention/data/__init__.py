"""Sources of text and examples, tokenizers, and the making of rows; a folder for each kind of rows."""
