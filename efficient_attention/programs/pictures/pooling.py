"""Writes HTML pages that show the weight of each sentence and word of a text in a classifier's decision."""

from html import escape
from pathlib import Path

from absl import flags

from efficient_attention.commands.flags import checkpoint_from_flags, define_checkpoint, define_model
from efficient_attention.inference.pooling_weights import (
    BETWEEN,
    SPECIAL,
    UNREAD,
    PoolingWeightsOfText,
    PoolingWeightsPipeline,
    WeightedSentence,
    WeightedWord,
)

LEAST = 0.0005  # weights of special tokens up to this value are not shown

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1e293b; --faint: #64748b; --line: #e2e8f0;
  --word: 37, 99, 235; --sentence: #ea580c; --strong: .5; }
@media (prefers-color-scheme: dark) { :root { --page: #0f172a; --text: #e2e8f0; --faint: #94a3b8; --line: #334155;
  --word: 96, 165, 250; --sentence: #fb923c; --strong: .6; } }
body { background: var(--page); color: var(--text); font: 16px/1.65 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.15rem; margin: 0 0 .25rem; }
p { color: var(--faint); font-size: .875rem; margin: 0 0 1rem; }
article { margin-bottom: 3rem; }
.sentence { display: grid; grid-template-columns: 7rem 1fr; gap: 1rem; border-top: 1px solid var(--line);
  padding: .35rem 0; }
.weight { color: var(--faint); font-size: .8rem; font-variant-numeric: tabular-nums; padding-top: .2rem; }
.bar { display: block; height: .45rem; border-radius: .2rem; background: var(--sentence); min-width: 1px; }
.word { border-radius: .2rem; padding: .1rem .05rem; }
.special { color: var(--faint); font-size: .75rem; }
.unread { color: var(--faint); text-decoration: line-through; }
@media (max-width: 36rem) { .sentence { grid-template-columns: 4rem 1fr; } }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
LEGEND = (
    'Left: the weight of each sentence in the text. The stronger a word&rsquo;s colour, the larger the root of its '
    'sentence&rsquo;s weight times its own weight in the sentence (Yang et al. 2016, section 3.5); hover for the '
    'number. &ldquo;special&rdquo; is the weight of the tokens that the tokenizer adds; what is struck out is not read.'
)


def define_pooling_flags(options: flags.FlagValues) -> None:
    """Defines the flags that choose the classifier."""
    define_model(options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)


def pages_of_texts(texts: list[str], options: flags.FlagValues) -> str:
    """Classifies texts, prints the predictions, and returns an HTML page with the weights of sentences and words."""
    weigher = PoolingWeightsPipeline(Path(options.model), checkpoint_from_flags(options))
    found = [weigher(text) for text in texts]
    for one in found:
        print(format_prediction(one))
    return html_page(found)


def html_page(texts: list[PoolingWeightsOfText]) -> str:
    """Returns an HTML page with the pooling weights of texts; it fits light and dark mode, and needs no external
    files.
    """
    body = '\n'.join(html_article(one) for one in texts)
    return PAGE.format(title='Weights of sentences and words', style=STYLE, body=f'{body}\n<p>{LEGEND}</p>')


def html_article(text: PoolingWeightsOfText) -> str:
    """Returns the HTML of one text: the model's prediction as heading, then the sentences with their weights."""
    strongest = max((word_shade(one, word) for one in text.sentences for word in one.words), default=0.0)
    heaviest = max((one.weight for one in text.sentences), default=0.0)
    rows = '\n'.join(html_sentence_row(one, heaviest, strongest) for one in text.sentences)
    note = f'<p>{text.left_out} more sentences are over the length limit and are not read.</p>' if text.left_out else ''
    return f'<article>\n<h1>{escape(format_prediction(text))}</h1>\n{rows}\n{note}</article>'


def format_prediction(text: PoolingWeightsOfText) -> str:
    """Returns a prediction as text: the label with its probability or, for a regression, the predicted number."""
    label, score = text.answer.get('label'), text.answer['score']
    return f'{score:.3f}' if label is None else f'{label} ({score:.1%})'


def word_shade(sentence: WeightedSentence, word: WeightedWord) -> float:
    """Returns how dark a word is drawn: its weight times the root of its sentence's weight; 0 for special tokens.

    The caller scales the darkest word to 1.
    """
    return 0.0 if word.kind == SPECIAL else sentence.weight**0.5 * word.weight


def html_sentence_row(sentence: WeightedSentence, heaviest: float, strongest: float) -> str:
    """Returns the HTML of one sentence with a bar for its weight; the longest bar fills its column."""
    width = 100 * sentence.weight / heaviest if heaviest else 0.0
    words = ''.join(
        html_word_span(word, word_shade(sentence, word) / strongest if strongest else 0.0) for word in sentence.words
    )
    bar = f'<span class="bar" style="width: {width:.1f}%"></span>{sentence.weight:.1%}'
    return f'<div class="sentence"><div class="weight">{bar}</div><div>{words}</div></div>'


def html_word_span(word: WeightedWord, share: float) -> str:
    """Returns the HTML of one word, coloured by its weight, or of the text between words."""
    if word.kind == SPECIAL:
        return f' <span class="special">special {word.weight:.1%}</span>' if word.weight > LEAST else ''
    if word.kind == UNREAD:
        return f'<span class="unread">{escape(word.text)}</span>'
    if word.kind == BETWEEN:
        return escape(word.text)
    colour = f'rgba(var(--word), calc({share:.3f} * var(--strong)))'
    return f'<span class="word" style="background: {colour}" title="{word.weight:.2%}">{escape(word.text)}</span>'
