"""Command lines: defines and parses flags, prints --help, and reports an error as one line with an exit code."""
