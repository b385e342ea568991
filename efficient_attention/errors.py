"""What is wrong with a user's input, said in one line."""


class InputError(ValueError):
    """Bad input from the user: one line that names what is wrong and where (field, file, byte offset, known values).

    Entry points print it as `error: <line>` and exit with code 2.
    """


class RunError(RuntimeError):
    """A run cannot go on for a reason other than its input, such as a full disk or a loss that stays infinite.

    Its message is one line as well. Entry points print it as `error: <line>` and exit with code 1.
    """
