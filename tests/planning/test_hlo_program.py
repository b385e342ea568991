"""Tests which instructions of a compiled program's text run, and how often."""

import dataclasses

import pytest

from efficient_attention.planning.hlo_program import Shape, parse_program, parse_shapes
from tests.planning.small_program import TEXT


def test_an_instruction_in_a_loop_runs_as_often_as_the_loop():
    program = parse_program(TEXT)
    times = {run.instruction.name: run.times for run in program.executed_instructions()}
    assert program.entry == 'main' and not program.loops_of_unknown_length()
    assert (times['wide'], times['product'], times['slice.1'], times['all-gather.1']) == (1, 3, 3, 1)
    assert 'sum' not in times and 'go-on' not in times


def test_parts_of_a_fusion_stand_where_the_fusion_stands():
    scopes = {run.instruction.name: (run.scope, run.is_fused) for run in parse_program(TEXT).executed_instructions()}
    assert scopes['slice.1'] == ('body', True) and scopes['weights'] == ('body', False)
    assert scopes['all-gather.2'] == ('main', True) and scopes['loop'] == ('main', False)


def test_the_compiler_may_say_how_often_a_loop_runs():
    known = TEXT.replace('body=%body', 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert max(run.times for run in parse_program(known).executed_instructions()) == 5


def test_of_a_condition_the_longest_branch_runs():
    """The devices of a ring may have blocks of different kinds, so that each runs only one branch."""
    branches = """%short (p: f32[4,16]) -> f32[4,16] {
  %p = f32[4,16]{1,0} parameter(0)
  ROOT %once = f32[4,16]{1,0} negate(%p)
}

%long (q: f32[4,16]) -> f32[4,16] {
  %q = f32[4,16]{1,0} parameter(0)
  %first = f32[4,16]{1,0} negate(%q)
  ROOT %second = f32[4,16]{1,0} negate(%first)
}

"""
    chosen = '  %chosen = f32[4,16]{1,0} conditional(%zero, %a, %a), branch_computations={%short, %long}\n'
    program = parse_program(TEXT.replace('ENTRY', branches + 'ENTRY').replace('  %wide', chosen + '  %wide'))
    names = {run.instruction.name for run in program.executed_instructions()}
    assert {'chosen', 'first', 'second'} <= names and 'once' not in names
    shortest = dataclasses.replace(program, takes_shortest_branch=True)
    names = {run.instruction.name for run in shortest.executed_instructions()}
    assert {'chosen', 'once'} <= names and names.isdisjoint({'first', 'second'})


@pytest.mark.parametrize('first, step, turns', [(0, 2, 2), (1, 1, 2), (0, 3, 1), (-1, 1, 4)])
def test_a_loop_may_begin_later_and_go_in_larger_steps(first, step, turns):
    """The compiler writes such loops when it unrolls them."""
    text = TEXT.replace('%one = s32[] constant(1)', f'%one = s32[] constant({step})')
    program = parse_program(text.replace('%zero = s32[] constant(0)', f'%zero = s32[] constant({first})'))
    assert max(run.times for run in program.executed_instructions()) == turns


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    for old, new in (('direction=LT', 'direction=NE'), ('add(%counter', 'multiply(%counter'), ('(%from', '(%a')):
        program = parse_program(TEXT.replace(old, new))
        assert (
            program.loops_of_unknown_length() == ['loop']
            and max(run.times for run in program.executed_instructions()) == 1
        )


@pytest.mark.parametrize(
    'text, shapes',
    [
        ('bf16[2,3]{1,0:T(8,128)(2,1)S(1)}', (Shape('bf16', (2, 3), 1),)),
        ('(s32[]{:T(128)}, /*index=1*/pred[12]{0})', (Shape('s32', ()), Shape('pred', (12,)))),
        ('token[]', (Shape('token', ()),)),
    ],
)
def test_shapes(text, shapes):
    assert parse_shapes(text) == shapes


def test_bytes_of_shapes():
    assert [
        Shape(kind, (4, 3)).unpadded_bytes for kind in ('bf16', 'f32', 'pred', 's64', 'f8e4m3fn', 'u4', 'token')
    ] == [
        24,
        48,
        12,
        96,
        12,
        6,
        0,
    ]
