import gzip

import pytest

from efficient_attention.data.json_files import check_identifiers, checked, field_of, read_json, read_json_lines
from efficient_attention.errors import InputError


def test_rows_with_their_lines(tmp_path):
    path = tmp_path / 'rows.jsonl'
    path.write_text('{"a": 1}\n\n[2]\n')
    assert list(read_json_lines(path)) == [({'a': 1}, f'{path}: line 1'), ([2], f'{path}: line 3')]


def test_packed_json(tmp_path):
    path = tmp_path / 'rows.json.gz'
    path.write_bytes(gzip.compress('{"a": "é"}'.encode()))
    assert read_json(path) == {'a': 'é'}


def test_what_is_no_json_is_named(tmp_path):
    path = tmp_path / 'rows.jsonl'
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(InputError, match=r'rows\.jsonl: line 2: not JSON'):
        list(read_json_lines(path))


@pytest.mark.parametrize(
    'row, kind, message',
    [
        ([], int, 'here: not a JSON object'),
        ({'b': 1}, int, "here: no field 'a'; known: b"),
        ({'a': 'x'}, int, "here: field 'a' is str, not a whole number"),
        ({'a': True}, int, "here: field 'a' is bool, not a whole number"),
        ({'a': 1}, bool, "here: field 'a' is int, not true or false"),
        ({'a': None}, list, "here: field 'a' is NoneType, not a list"),
        ({'a': 'x\ud800'}, str, "here: field 'a' holds half of a surrogate pair"),
    ],
)
def test_what_a_field_may_not_be(row, kind, message):
    with pytest.raises(InputError) as error:
        field_of(row, 'a', kind, 'here')
    assert message in str(error.value)


def test_values_and_defaults():
    assert field_of({'a': 3}, 'a', int, 'here') == 3
    assert field_of({}, 'a', int, 'here', default=None) is None
    assert checked({'b': 1}, dict, 'here') == {'b': 1}


def test_an_identifier_twice():
    check_identifiers([('a', 'one'), ('b', 'two')])
    with pytest.raises(InputError, match="three: field 'id' is that of one too"):
        check_identifiers([('a', 'one'), ('b', 'two'), ('a', 'three')])
