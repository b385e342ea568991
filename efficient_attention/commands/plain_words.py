"""What Python, absl and ml_collections say of a flag's bad value, in plain words."""

import re

KIND = r'(?:[\w.]+\.)?(?:ValueError|InputError): '  # of an error that a config file raises about its argument
SAID: tuple[tuple[str, str], ...] = (  # what is said -> in plain words
    (
        r'(?:flag )?--(?:model|workdir)=(.*): already defined as (.*)',
        r'--model and --workdir name one folder: \2 or \1',
    ),
    (r"invalid literal for int\(\) with base \d+: ''", 'the value is missing; it must be a whole number'),
    (r'invalid literal for int\(\) with base \d+: (.*)', r'\1 is not a whole number'),
    (r"could not convert string to float: ''", 'the value is missing; it must be a number'),
    (r'could not convert string to float: (.*)', r'\1 is not a number'),
    (r"\('Non-boolean argument to boolean flag', (.*)\)", r'\1 is neither true nor false'),
    (r'value should be one of <(.*)>', r'it must be one of \1'),
    (r'Error while parsing string: (.*) as tuple\. If you .*', r'\1 is not a list; write such as a,b or 1,2'),
    (r'Failed to parse (.*) as a ConfigDict: .*', r'\1 is given to a group; give a value to one field of the group'),
    (r"Attribute <class '.*'>\.\w+ does not exist .* lookup: (.*)\.(\w+)", r'\1 is a field, and has no field \2'),
    (r"Could not parse '(.*)': SyntaxError.*", r"'\1' is not the name of a field"),
    (rf'Error whilst parsing config file: {KIND}(.*)', r'\1'),
    (r'Error whilst parsing config file: (.*)', r'the config file fails: \1'),
)


def in_plain_words(text: str) -> str:
    """A line about a flag; if it ends with a message of a library, plain words replace that message."""
    for said, plain in SAID:
        if match := re.search(f'{said}$', text, re.DOTALL):
            return text[: match.start()] + match.expand(plain)
    return text
