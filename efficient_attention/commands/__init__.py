"""The command line: flags, their parsing and --help, and errors as one line and an exit code."""
