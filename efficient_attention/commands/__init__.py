"""The command line: definition and parsing of flags, --help, and errors as one line with an exit code."""
