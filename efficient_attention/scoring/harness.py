"""Lets lm-evaluation-harness (Gao et al., `pip install lm-eval`) score the language models of this project.

    python -m efficient_attention.scoring.harness --model efficient_attention --model_args path=runs/pieces_full \\
        --tasks my_task --include_path tasks --batch_size 16

These are the flags of `lm_eval`, which cannot find models of other packages by itself. In Python:

    lm_eval.simple_evaluate(model=HarnessModel('runs/pieces_full'), tasks=['my_task'], task_manager=...)

The scores mean what those of the harness's own model `hf` mean: an empty context is the document separator, contexts
that are too long lose tokens from their left, and whole texts are cut into windows that do not overlap.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from efficient_attention.errors import ExitCode, InputError, missing_extra_error, show_error
from efficient_attention.scoring.decoder_scorer import DecoderScorer, encode_with_units, ids_with, separator_ids
from efficient_attention.scoring.open_scorer import open_scorer
from efficient_attention.scoring.pairs import Pair, PairTokens

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import simple_parse_args_string
except ModuleNotFoundError as error:
    raise missing_extra_error('efficient_attention.scoring.harness', 'harness', error) from None

NAME = 'efficient_attention'
# The names of the maximum number of generated tokens; the first one that is given counts.
MAX_TOKENS = ('max_gen_toks', 'max_new_tokens', 'max_tokens', 'max_completion_tokens')
SAMPLING = ('temperature', 'top_p', 'top_k')  # without a meaning where do_sample is False


class Generation(NamedTuple):
    """How a text is continued: stop strings, and the maximum number of tokens."""

    stops: tuple[str, ...]
    max_tokens: int


@register_model(NAME)
class HarnessModel(LM):
    """A language model of a workdir or Hugging Face folder, as the harness calls it.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint: 'last', 'best', a step or 'average-5'; '' = the best if one is known, else
            the last.
        batch_size: rows at a time.
        length: maximum tokens to read at once; 0 = the model's positions, or the length of its training rows.
        max_gen_toks: maximum tokens to generate where a task does not say.
        other: `device`, which the command always passes, has no effect, because JAX chooses the devices. Any other
            argument is refused.

    Raises:
        InputError: an argument is unknown or out of range, or the folder has no language model.
    """

    def __init__(
        self,
        path: str | Path = '',
        *,
        checkpoint: str | int = '',
        batch_size: int | str = 16,
        length: int = 0,
        max_gen_toks: int = 256,
        **other: Any,
    ) -> None:
        super().__init__()
        other.pop('device', None)
        for name, value in other.items():
            raise InputError(
                f'model argument {name}={value}: known are path, checkpoint, batch_size, length and max_gen_toks'
            )
        if not str(path):
            raise InputError('--model_args needs path=FOLDER')
        if not str(batch_size).isdecimal():
            raise InputError(f'batch_size is {batch_size!r}; it must be a whole number from 1 on')
        scorer = open_scorer(Path(path), checkpoint=str(checkpoint), batch_size=int(batch_size), length=length)
        if not isinstance(scorer, DecoderScorer):
            raise InputError(f'{path}: the harness needs a language model; this is no decoder')
        self.scorer, self.max_gen_toks = scorer, max_gen_toks

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> 'HarnessModel':
        """Returns the model with the arguments of `--model_args`, which override flags such as `--batch_size`."""
        flags = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**(flags | dict(arg_dict)))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> 'HarnessModel':
        """Returns the model with arguments such as 'path=runs/pieces_full,length=512'."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Returns the log-probability of each request's continuation after its context, and whether greedy decoding
        gives the continuation.

        Raises:
            InputError: a continuation is empty, or has more tokens than the model reads.
        """
        return self.scorer.score_tokens([self.encode(*request.args) for request in requests])

    def encode(self, context: str, continuation: str) -> PairTokens:
        """Returns the tokens of a pair, with as many of the last tokens of the context as the model reads."""
        row, longest = self.scorer.encode(Pair(context, continuation)), self.scorer.longest
        if longest is None:
            return row
        if len(row.continuation) > longest:
            raise InputError(
                f'the continuation {continuation[:40]!r} has {len(row.continuation)} tokens; the model reads {longest} '
                'at most'
            )
        # The last token is only predicted, so context and continuation may have one token more than the model reads.
        return row._replace(context=row.context[-(longest + 1 - len(row.continuation)) :])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Returns the log-probability of each request's text after the document separator; raises InputError if a text
        has no token.
        """
        return [
            score.log_prob for score in self.scorer.score_texts([text for [text] in (one.args for one in requests)])
        ]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Returns what greedy decoding adds to each request's context, up to the first stop string.

        Raises:
            InputError: a request asks for something other than greedy decoding, or for so many tokens that no
                context fits.
        """
        found = [''] * len(requests)
        groups: dict[Generation, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[parse_generation(request.args[1], self.max_gen_toks)].append(number)
        for asked, numbers in groups.items():
            texts = self.generate([requests[number].args[0] for number in numbers], asked)
            for number, text in zip(numbers, texts, strict=True):
                found[number] = text
        return found

    def generate(self, contexts: Sequence[str], asked: Generation) -> list[str]:
        """Returns what greedy decoding adds to each context; contexts are cut so that answers fit."""
        units, longest = self.scorer.units, self.scorer.longest
        if longest is not None and asked.max_tokens >= longest:
            raise InputError(f'max_gen_toks is {asked.max_tokens}; it must be below {longest}, the limit of the model')
        room = 0 if longest is None else longest - asked.max_tokens  # 0 = any number
        separator = separator_ids(units)
        rows = [
            (encode_with_units(units, Pair('', context)).continuation if context else separator)[-room:]
            for context in contexts
        ]
        # A separator of several tokens, such as an empty line of bytes, is one more stop string.
        ends, stops = ids_with(units, asked.stops), asked.stops
        if len(separator) == 1:
            ends += separator
        else:
            stops = (*stops, units.decode(np.asarray(separator)))
        written = self.scorer.generate_ids(rows, [asked.max_tokens] * len(rows), tuple(dict.fromkeys(ends)))
        return [text_before(units.decode(np.asarray(ids, np.int64)), stops) for ids in written]


def parse_generation(options: Mapping[str, Any], max_tokens: int) -> Generation:
    """Returns what a task asks for in `generation_kwargs`.

    `do_sample` = False makes the harness ignore a temperature, and many tasks set both.

    Raises:
        InputError: the task asks for something other than greedy decoding.
    """
    left = dict(options)
    until, is_sampled, beams = left.pop('until', None), left.pop('do_sample', None), left.pop('num_beams', 1)
    stops = [until] if isinstance(until, str) else list(until or ())
    given = [count for count in (left.pop(name, None) for name in MAX_TOKENS) if count is not None]
    count = int(given[0]) if given else max_tokens
    sampling = {name: left.pop(name) for name in SAMPLING if name in left}
    if is_sampled or (is_sampled is None and float(sampling.get('temperature') or 0) > 0):
        raise InputError(f'the task samples its answers ({options}); only greedy decoding is supported')
    if left or beams != 1:
        name = next(iter(left), 'num_beams')
        raise InputError(
            f'{name}={options[name]!r} in generation_kwargs: only until, max_gen_toks and do_sample=False are supported'
        )
    if count < 1:
        raise InputError(f'max_gen_toks is {count}; it must be at least 1')
    return Generation(tuple(stop for stop in stops if stop), count)


def text_before(text: str, stops: Sequence[str]) -> str:
    """Returns the text before the first stop string."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def main() -> None:
    """Runs the command of the harness; bad input prints one line."""
    try:
        cli_evaluate()
    except InputError as error:
        show_error(error)
        sys.exit(ExitCode.BAD_INPUT)


if __name__ == '__main__':
    main()
