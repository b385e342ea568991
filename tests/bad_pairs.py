"""Bad inputs of the task text_to_text; they extend the table of tests/bad_inputs.py."""

from tests.bad_files import WORDS, Content
from tests.bad_inputs import BadInput

PAIR = 'the dog\tdog the\n'
FEW = 'pairs.train=toy:reverse:100:2-20'  # A tokenizer is learned quickly from so few pairs.


def train(fields: str, line: str, **files: Content) -> BadInput:
    """Returns the refused input of a training run of the toy model in a new workdir; `fields` names config fields, with
    spaces between them.
    """
    words = ' '.join(f'--config.{field}' for field in fields.split())
    command = f'train.py --config=configs/text_to_text/toy.py --workdir={{here}}/new {words}'
    return BadInput(command, line, {name.replace('__', '.'): content for name, content in files.items()})


def lines(source: Content, target: Content, line: str, fields: str = '') -> BadInput:
    """Returns the refused input of a training run on two parallel files with these contents."""
    return train(f'pairs.train=lines:{{here}}/a.txt,{{here}}/b.txt {fields}', line, a__txt=source, b__txt=target)


def translate(words: str, line: str, **files: Content) -> BadInput:
    """Returns the refused input of scripts/translate.py with an unsuitable checkpoint or unsuitable files."""
    command = f'scripts/translate.py --model={{base}}/run {words}'
    return BadInput(command, line, {name.replace('__', '.'): content for name, content in files.items()})


FILES = '--input={here}/a.txt --output={here}/b.txt'

BAD_PAIRS = {
    # ---- pairs ----
    'sources too many': lines('a\nb\nc\n', 'a\nb\n', '{here}/a.txt: line 3 has no partner; {here}/b.txt has 2 lines'),
    'targets too many': lines('a\n', 'a\nb\n', '{here}/b.txt: line 2 has no partner; {here}/a.txt has 1 line'),
    'source empty': lines('a\n \n', 'a\nb\n', '{here}/a.txt: line 2 is empty'),
    'target empty': lines('a\nb\n', 'a\n\n', '{here}/b.txt: line 2 is empty'),
    'pairs none': lines('', '', 'pairs.train'),
    'pairs file missing': train('pairs.train=lines:{here}/a.txt,{here}/b.txt', 'pairs.train: '),
    'target overlong': lines(
        'a b\n',
        'a b c d e\n',
        '{here}/a.txt: line 1: 3 and 6 tokens, above',
        'pairs.overlong=error pairs.target_length=4',
    ),
    'column missing': train(
        'pairs.train=table:{here}/a.tsv#german,english', '{here}/a.tsv', a__tsv='source\ttarget\n' + PAIR
    ),
    'set unknown': train('pairs.train=toys:copy:10:2-3', "pairs.train has the set 'toys:copy:10:2-3'; known: "),
    'toy unknown': train('pairs.train=toy:cpy:10:2-3', 'pairs.train'),
    'prefixes too many': train(
        "pairs.prefix=('a','b')",
        "pairs.prefix has 2 prefixes, and pairs.train 1 datasets; write several prefixes as ('a','b'), because a,b is",
    ),
    # ---- noise ----
    'noise unknown': train('noise.name=electra', "noise.name is 'electra'; known: none, span_corruption, bart"),
    'noise of pairs': train('noise.name=bart', "pairs.train is 'toy:reverse:"),
    'sentinels too few': train(
        'noise.name=span_corruption pairs.train= pairs.held_out= pairs.test= eval.beams=4 data.held_out=0 '
        'data.source=text:{here}/a.txt data.tokenizer={here}/vocab.txt',
        'tokenizer {here}/vocab.txt: no sentinels in its vocabulary; 7 are needed',
        vocab__txt=WORDS,
        a__txt='the dog\n',
    ),
    # ---- tokenizers ----
    'tokenizer beyond vocabulary': train(
        'data.tokenizer={here}/vocab.txt model.vocab_size=5', 'the tokenizer has 7 pieces, more than', vocab__txt=WORDS
    ),
    'target tokenizer without table': train('pairs.target_tokenizer=train:wordpiece', 'model.shared_table is True'),
    'target tokenizer unknown': train(
        'pairs.target_tokenizer=train:words model.shared_table=False',
        "pairs.target_tokenizer is 'train:words'; known: ",
    ),
    'target tokenizer too large': train(
        f'{FEW} pairs.target_tokenizer={{here}}/vocab.txt model.shared_table=False pairs.target_vocab_size=5',
        'pairs.target_tokenizer has 7 pieces, more than model.target_vocab_size 5',
        vocab__txt=WORDS,
    ),
    'begin unknown': train(f'{FEW} pairs.begin=<s>', "pairs.begin is '<s>', which the tokenizer lacks"),
    # ---- models ----
    'decoder missing': train(
        'model.decoder_layers=0', 'model.decoder_layers is 0; the task text_to_text needs a decoder'
    ),
    'decoder bidirectional': train('model.decoder_attention=full', "model.decoder_attention 'full' is not causal"),
    'encoder missing': train('model.layers=0', 'model.layers is 0'),
    'cell unknown': train('model.cell=elman', "model.cell is 'elman'; known: none, tanh, gru, lstm, sru1, sru2"),
    'cross attention unread': train(
        'model.cell=gru model.source_reading=state model.initial_state=map model.positions=none'
        ' model.heads=2 model.attention_dropout_rate=0.1 model.cross_attention=hard(full,sampled=True)',
        "model.cross_attention is 'hard(full,sampled=True)'; it must be 'full' with model.cell 'gru', whose layers do",
    ),
    'score unknown': train('model.score=cosine', "model.score is 'cosine'; known: dot, general, additive, location"),
    'distribution unknown': train('model.cross_attention=softmin(full)', "attention 'softmin(full)': unknown name"),
    'cross attention sparsemax': train(
        'model.cross_attention=sparsemax(causal)', "model.cross_attention 'sparsemax(causal)' needs queries and keys in"
    ),
    'local-p to itself': train(
        'model.attention=local_p(4)', "model.attention 'local_p(4)' predicts positions in another"
    ),
    'draws to itself': train(
        'model.decoder_attention=hard(causal,sampled=True)',
        "model.decoder_attention 'hard(causal,sampled=True)' does not fit a decoder: model.attention",
    ),
    'cross attention LSH': train('model.cross_attention=lsh(8)', "model.cross_attention 'lsh(8)'"),
    'rows split': train(
        'mesh.sequence=2 model.cross_attention=window(4)',
        "mesh.sequence is 2; model.cross_attention 'window(4)' does not work with",
    ),
    # ---- search and its files ----
    'references missing': train('eval.split=test pairs.test=', "eval.split is 'test', but pairs.test is empty"),
    'beams none': train('eval.beams=0', 'eval.beams is 0'),
    'translation by an encoder': translate(FILES, "{base}/run was trained for 'fill_mask'", a__txt='dog\n'),
    'translation there': translate(FILES, '{here}/b.txt: there is a file already', a__txt='dog\n', b__txt='dog\n'),
    'translation without input': translate('--output={here}/b.txt', '--output needs --input; without both,'),
    'translation scored nowhere': translate(
        '--input={here}/a.txt --references={here}/a.txt', '--references needs --output', a__txt='dog\n'
    ),
    'translation scored with beams': BadInput(
        'scripts/translate.py --output={here}/a.txt --references={here}/a.txt --beams=2',
        '--beams changes a search, but without --input only the existing --output is scored',
        {'a.txt': 'a\n'},
    ),
    'translation scored as lines': BadInput(
        'scripts/translate.py --output={here}/a.jsonl --references={here}/a.jsonl',
        '{here}/a.jsonl has a JSON object on each line; add --format jsonl',
        {'a.jsonl': '{"best": []}\n'},
    ),
    'pairs all overlong': lines(
        'a b\n',
        'a b c d e\n',
        "pairs.train 'lines:{here}/a.txt,{here}/b.txt' gives no pair: all 1 are above data.length 128 and",
        'pairs.overlong=skip pairs.target_length=4',
    ),
    'translation scored and there': translate(
        FILES + ' --references={here}/c.txt',
        '{here}/b.txt: there is a file already; name another one (--output); to score this file, give only '
        '--output and --references',
        a__txt='a\n',
        b__txt='a\n',
        c__txt='a\n',
    ),
    'translation scored by a model': translate(
        '--references={here}/a.txt --output={here}/b.txt', '--model needs --input; without both', a__txt='a\n'
    ),
    'translation scored missing': BadInput(
        'scripts/translate.py --references={here}/a.txt --output={here}/b.txt', '{here}/b.txt: ', {'a.txt': 'a\n'}
    ),
    'translation scored without output': BadInput(
        'scripts/translate.py --references={here}/a.txt',
        '--references needs --output, and also --input',
        {'a.txt': 'a\n'},
    ),
    'translation without a model': BadInput('scripts/translate.py', '--model is missing', {}),
    'translation best': translate(FILES + ' --best=2', '--best is 2; --format text', a__txt='a\n'),
}
