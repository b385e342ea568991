"""Arguments that attention mechanisms refuse; tests/bad_inputs.py has the other bad inputs."""

from tests.bad_inputs import BadInput, train

BAD_MECHANISMS: dict[str, BadInput] = {
    'slots of no rank': train(
        'model.attention=linformer(0,512)', "attention 'linformer(0,512)': linformer rank is 0; it must be at least 1"
    ),
    'an open bracket': train('model.attention=window(2', "attention 'window(2': missing ) for the ( at column 7"),
    'no landmarks': train(
        'model.attention=nystrom(0)', "attention 'nystrom(0)': nystrom landmarks is 0; it must be at least 1"
    ),
    'causal points': train(
        'model.attention=induced(4,causal=True)',
        "attention 'induced(4,causal=True)': induced has no option causal; write another mechanism, as induced has no",
    ),
    **{
        f'decoder of {text}': BadInput(
            f'train.py --config=configs/lm/books_characters.py --workdir={{here}}/new --config.model.attention={text} '
            '--config.train.batch_size=8',
            f'model.attention {text!r} is not causal, as a decoder needs it; write another mechanism, as ',
        )
        for text in ('linformer(8,512)', 'nystrom(16)', 'induced(8)')
    },
    'sort at no temperature': train(
        'model.attention=sinkhorn(4,8,temperature=-0.5)',
        "attention 'sinkhorn(4,8,temperature=-0.5)': sinkhorn temperature is -0.5; it must be a number above 0",
    ),
    'cut beyond the blocks': train(
        'model.attention=sinkhorn(64,2,cut=3)', "attention 'sinkhorn(64,2,cut=3)': sinkhorn cut is 3; it must be at mo"
    ),
    'blocks of half a token': train(
        'model.attention=sinkhorn(0.5,8)', "attention 'sinkhorn(0.5,8)': sinkhorn block is 0.5; it must be a whole num"
    ),
    'row beyond the blocks': train(
        'model.attention=sinkhorn(4,2)',
        'data.length 32 is beyond the 8 tokens that model.attention sinkhorn reads at most',
    ),
    'sort of packed documents': train(
        'model.attention=sinkhorn(16,8) data.pairs=none', "data.pairs is 'none', which packs documents into full rows"
    ),
    'no clusters': train(
        'model.attention=routing(0,8)', "attention 'routing(0,8)': routing clusters is 0; it must be at least 1"
    ),
    'clusters of half a token': train(
        'model.attention=routing(4,0.5)', "attention 'routing(4,0.5)': routing size is 0.5; it must be a whole number"
    ),
    'window without local heads': train(
        'model.attention=routing(4,8,window=3)',
        "attention 'routing(4,8,window=3)': routing window is 3; it must be 64 without local heads",
    ),
    'iterations of a causal sort': train(
        'model.attention=sinkhorn(16,8,3,causal=True)',
        "attention 'sinkhorn(16,8,3,causal=True)': sinkhorn iterations is 3; it must be 8 in the causal form",
    ),
    'all heads local': train(
        'model.attention=routing(4,8,local_heads=2)', 'routing local_heads is 2; it must be below 2, the heads'
    ),
}
