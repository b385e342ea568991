"""Sources, tokenizers, and the making of rows, with a folder for each kind; beside them what several kinds share."""
