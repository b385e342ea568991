"""The text of a small partitioned program in the formats that the compilers of JAX 0.10 print."""

import functools

# A loop runs three times, with a product of [4, 8] by [8, 16] and a collective each. One gather is asynchronous.
_GATHERED = "replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}, dimensions={0}"
_CYCLES = 'backend_config={"window_config":{"estimated_cycles":"100"}}'
_SUMMED = 'channel_id=2, replica_groups=[4,2]<=[2,2,2]T(1,2,0), to_apply=%add'
_PAIRS = 'source_target_pairs={{0,4},{4,0},{1,5},{5,1},{2,6},{6,2},{3,7},{7,3}}'
_START, _DONE = 'custom_call_target="AsyncCollectiveStart"', 'custom_call_target="AsyncCollectiveDone"'
_LINES = """HloModule jit_step, entry_computation_layout={(f32[4,8]{1,0})->f32[4,16]{1,0}}, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%start (p: bf16[2,8]) -> (bf16[2,8], bf16[8,8]) {
  %p = bf16[2,8]{1,0:T(8,128)(2,1)} parameter(0)
  %all-gather.1 = bf16[8,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=1, {GATHERED}
  ROOT %custom-call.1 = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) custom-call(%all-gather.1), {START}
}

%done (q: bf16[2,8]) -> bf16[8,8] {
  %q = bf16[2,8]{1,0} parameter(0)
  %all-gather.2 = bf16[8,8]{1,0} all-gather(%q), channel_id=1, {GATHERED}
  ROOT %custom-call.2 = bf16[8,8]{1,0} custom-call(%q, %all-gather.2), {DONE}
}

%all-reduce-scatter.1 (s: f32[8,16]) -> f32[4,16] {
  %s = f32[8,16]{1,0} parameter(0)
  %all-reduce.3 = f32[8,16]{1,0} all-reduce(%s), channel_id=3, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  %zero.1 = s32[] constant(0)
  ROOT %kept = f32[4,16]{1,0} dynamic-slice(%all-reduce.3, %zero.1, %zero.1), dynamic_slice_sizes={4,16}
}

%sliced (whole: f32[3,8,16], turn: s32[]) -> f32[8,16] {
  %whole = f32[3,8,16]{2,1,0} parameter(0)
  %turn = s32[] parameter(1)
  %zero.2 = s32[] constant(0)
  %slice.1 = f32[1,8,16]{2,1,0} dynamic-slice(%whole, %turn, %zero.2, %zero.2), dynamic_slice_sizes={1,8,16}
  ROOT %layer = f32[8,16]{1,0} bitcast(%slice.1)
}

%body (state: (s32[], f32[4,8], f32[3,8,16])) -> (s32[], f32[4,8], f32[3,8,16]) {
  %state = (s32[], f32[4,8]{1,0}, f32[3,8,16]{2,1,0}) parameter(0)
  %counter = s32[] get-tuple-element(%state), index=0
  %rows = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %layers = f32[3,8,16]{2,1,0} get-tuple-element(%state), index=2
  %weights = f32[8,16]{1,0} fusion(%layers, %counter), kind=kLoop, calls=%sliced, {CYCLES}
  %product = f32[4,16]{1,0} dot(%rows, %weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %all-reduce.2 = (f32[4,16]{1,0}, /*index=1*/f32[4,16]{1,0}) all-reduce(%product, %product), {SUMMED}
  %one = s32[] constant(1)
  %more = s32[] add(%counter, %one)
  ROOT %next = (s32[], f32[4,8]{1,0}, f32[3,8,16]{2,1,0}) tuple(%more, %rows, %layers)
}

%condition (state.1: (s32[], f32[4,8], f32[3,8,16])) -> pred[] {
  %state.1 = (s32[], f32[4,8]{1,0}, f32[3,8,16]{2,1,0}) parameter(0)
  %counter.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[]{:T(128)} constant(3)
  ROOT %go-on = pred[]{:T(512)} compare(%counter.1, %limit), direction=LT
}

ENTRY %main (a: f32[4,8], w: f32[3,8,16], b: bf16[2,8]) -> f32[4,16] {
  %a = f32[4,8]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}
  %w = f32[3,8,16]{2,1,0} parameter(1)
  %b = bf16[2,8]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %begun = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) fusion(%b), kind=kCustom, calls=%start
  %ended = bf16[8,8]{1,0} fusion(%b), kind=kCustom, calls=%done
  %shifted = bf16[2,8]{1,0} collective-permute(%b), channel_id=4, {PAIRS}
  %from = s32[] copy(%zero)
  %initial = (s32[], f32[4,8]{1,0}, f32[3,8,16]{2,1,0}) tuple(%from, %a, %w)
  %loop = (s32[], f32[4,8]{1,0}, f32[3,8,16]{2,1,0}) while(%initial), condition=%condition, body=%body
  %wide = f32[8,16]{1,0} copy(%w)
  ROOT %scattered = f32[4,16]{1,0} fusion(%wide), kind=kCustom, calls=%all-reduce-scatter.1
}
"""
_LONG = {
    'GATHERED': _GATHERED,
    'CYCLES': _CYCLES,
    'SUMMED': _SUMMED,
    'PAIRS': _PAIRS,
    'START': _START,
    'DONE': _DONE,
}
TEXT = functools.reduce(lambda text, name: text.replace(f'{{{name}}}', _LONG[name]), _LONG, _LINES)
MESH = {'data': 2, 'fsdp': 2, 'tensor': 2}
