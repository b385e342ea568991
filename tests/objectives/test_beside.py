"""What is trained beside a model joins its parameters and parts from them again."""

from efficient_attention.objectives.beside import joined, separate


def test_joined_and_separate_are_inverse():
    params, beside = {'encoder': 1, 'head': 2}, {'hidden': 3}
    assert joined(params, beside) == {'encoder': 1, 'head': 2, 'beside': {'hidden': 3}}
    assert separate(joined(params, beside)) == (params, beside, None)
    scores = {'encoder': 4}
    assert separate(joined(params, None, scores)) == (params, None, scores)
    assert separate(joined(params, beside, scores)) == (params, beside, scores)


def test_without_anything_beside_the_parameters_are_as_they_were():
    params = {'encoder': 1}
    assert joined(params, None) is params and separate(params) == (params, None, None)
    assert separate(3.0) == (3.0, None, None)
