"""Tests that unusable flags for several hosts are refused before a process waits for others."""

import pytest
from absl import flags

from efficient_attention.commands.host_flags import define_host_flags, multi_host_run_from_flags
from efficient_attention.errors import InputError


@pytest.fixture
def values() -> flags.FlagValues:
    values = flags.FlagValues()
    define_host_flags(values)
    return values


@pytest.mark.parametrize('flag', ['--process_count=2', '--bind_address=::1'])
def test_a_flag_for_hosts_without_distributed_is_refused(flag: str, values: flags.FlagValues):
    values(['program', flag])
    with (
        pytest.raises(InputError, match=f'{flag.split("=")[0]} needs --distributed'),
        multi_host_run_from_flags({}, values),
    ):
        pass


@pytest.mark.parametrize(
    'words, fault',
    [
        ('--coordinator=localhost --process_id=0', '--coordinator=localhost: it must be host:port'),
        ('--coordinator=localhost:99999 --process_id=1', '--coordinator=localhost:99999: it must be host:port'),
        ('--coordinator=192.0.2.1:7777 --process_id=0', 'cannot listen there .*; --bind_address names an address'),
        ('--coordinator=localhost:7777 --process_id=0 --process_count=0', '--process_count is 0'),
    ],
)
def test_a_place_that_there_is_not_is_refused(words: str, fault: str, values: flags.FlagValues):
    values(['program', '--distributed', '--process_count=2', *words.split()])
    with pytest.raises(InputError, match=fault), multi_host_run_from_flags({}, values):
        pass
