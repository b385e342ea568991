"""Defines the metrics of a run in one sentence each, with units, for its report."""

from efficient_attention.workdir.metrics import STILL_PRUNING, WEIGHTS_KEPT

# Definitions of whole names, as (sentence, unit).
BY_NAME = {
    'loss': ('The training loss: the weighted sum of all loss terms. The optimizer lowers it.', 'nats'),
    'learning_rate': ('The learning rate of the schedule at this step, before layer decay.', ''),
    'gradient_norm': ('The L2 norm of the gradient of all parameters, before clipping.', ''),
    'skipped': ('Steps that changed nothing because a number was not finite, since the start.', 'steps'),
    'steps_per_second': ('Training steps per second, without compilation, evaluations and reports.', 'steps/s'),
    'tokens_per_second': ('Tokens per second on all devices together, padding included.', 'tokens/s'),
    'waiting_share': ('The share of the time in which the devices waited for input.', '0 to 1'),
    'flops_utilisation': (
        'Floating-point operations of the model, as a share of the peak of the devices. Recomputation does not count.',
        '0 to 1',
    ),
    'bits_per_byte': ('The cross-entropy of the next byte, in bits.', 'bits/byte'),
    'bits_per_character': ('The cross-entropy of the next character, in bits.', 'bits/character'),
    'bits_per_dimension': ('The cross-entropy of the next colour value of an image, in bits.', 'bits/value'),
    'word_perplexity': ('The exponential of the cross-entropy per word; 1 is perfect.', ''),
    'bleu': ('SacreBLEU: overlap of n-grams between outputs and reference translations.', '0 to 100'),
    'exact_match': ('The share of answers that equal a reference answer after normalisation.', '0 to 100'),
    'support_threshold': ('A sentence counts as supporting above this probability; chosen on the dev files.', ''),
    'no_answer_threshold': (
        'A question counts as unanswerable above this score difference; chosen on the dev files.',
        '',
    ),
    'f1': ('The harmonic mean of precision and recall.', '0 to 1, or 0 to 100 for answers'),
    'precision': ('The share of found items that are right.', '0 to 1'),
    'recall': ('The share of right items that were found.', '0 to 1'),
    'matthews': ("Matthews' correlation between predicted and true labels.", '-1 to 1'),
    'pearson': ("Pearson's correlation between predicted and true numbers.", '-1 to 1'),
    'spearman': ("Spearman's rank correlation between predicted and true numbers.", '-1 to 1'),
    WEIGHTS_KEPT: ('The share of prunable weights that pruning has left.', '0 to 1'),
    STILL_PRUNING: ('1 while pruning continues. Such an evaluation never counts as the best.', ''),
}
# Definitions by the end of a name, as (end, sentence, unit). The first match counts.
BY_ENDING = (
    ('unigram_loss', 'The cross-entropy of a model that knows only token frequencies, on the same tokens.', 'nats'),
    ('below_unigram', 'The share by which the loss is below the loss of the unigram model.', 'up to 1'),
    ('perplexity', 'The exponential of the cross-entropy per token; 1 is perfect.', ''),
    ('cross_entropy', 'The mean of -log p(target), without label smoothing.', 'nats'),
    ('accuracy', 'The share of predictions that equal the target.', '0 to 1'),
    ('weight', 'The number of tokens or rows over which the metrics of this term are means.', ''),
    ('loss', 'The mean loss of this term, for classes and tokens -log p(target).', 'nats'),
    ('f1', 'The harmonic mean of precision and recall.', '0 to 1, or 0 to 100 for answers'),
    ('f1_macro', 'The mean of the F1 of each class.', '0 to 1'),
    ('exact', 'The share of answers that equal a reference answer after normalisation.', '0 to 100'),
    ('em', 'The share of answers that equal the reference answer after normalisation.', '0 to 1'),
    ('prec', 'The share of found items that are right.', '0 to 1'),
    ('recall', 'The share of right items that were found.', '0 to 1'),
    ('_thresh', 'The threshold for unanswerable questions with the best score.', ''),
)
# Definitions of the beginning of a name, as (beginning, words); they follow the definition of the ending.
BY_TERM = (
    ('masked_lm_', 'Term: masked language modelling, the prediction of masked tokens.'),
    ('causal_lm_', 'Term: causal language modelling, the prediction of each next token.'),
    ('backward_lm_', 'Term: backward language modelling, the prediction of each previous token.'),
    ('nsp_', 'Term: next-sentence prediction, whether two texts follow each other.'),
    ('sop_', 'Term: sentence-order prediction, whether two texts are in their order.'),
    ('target_', 'Term: the target text of the encoder-decoder.'),
    ('fine_tuning_', 'Term: the labels of the examples.'),
    ('sp_', 'Supporting sentences of an answer.'),
    ('joint_', 'Answer and supporting sentences together.'),
    ('HasAns_', 'Questions with an answer only.'),
    ('NoAns_', 'Questions without an answer only.'),
    ('best_', 'With the threshold that is best for these files.'),
)
SPLITS = {
    'train': 'Means over the training steps since the previous line of the log.',
    'held_out': 'Measured on data that the run does not train on.',
    'test': 'Measured on the test data.',
}


def define_metric(name: str) -> tuple[str, str]:
    """Returns the definition of a metric and its unit; ('', '') if the metric is unknown."""
    # The two dev sets of MNLI share their metrics: 'accuracy_matched', 'accuracy_mismatched'.
    name = name.removesuffix('_matched').removesuffix('_mismatched')
    if name in BY_NAME:
        return BY_NAME[name]
    of_term = next((words for begin, words in BY_TERM if name.startswith(begin)), '')
    for ending, words, unit in BY_ENDING:
        if name.endswith(ending):
            return ' '.join(filter(None, (words, of_term))), unit
    return of_term, ''
