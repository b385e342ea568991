"""Where text and examples come from, tokenizers, and what all rows share; a folder for each kind of rows."""
