"""Programs that take the place of train.py in the processes of a run (test_join_hosts.py)."""

# train.py of two processes which fine-tune before that, and evaluate what they have tuned, as eval.py does. The second
# is sent SIGTERM before its fifth step of pretraining. The way to JAX's service is slow: a main thread that waits for
# it with the interpreter lock in hand would wait for ever. Each writes down the tokens of its rows, a line each step.
STOPPED = """
    import json, os, signal, sys, time
    import jax
    import train as entry
    from efficient_attention.inference.evaluate_workdir import evaluate_workdir
    from efficient_attention.processes import coordinator_relay
    from efficient_attention.training import loop
    from efficient_attention.commands.command_line import run_command
    from efficient_attention.training.fill_config import fill_config

    train, next_batch, taken = loop.train, loop.Trainer.next_batch, []
    receive_bytes = relay.receive_bytes

    def received_late(source):
        received = receive_bytes(source)
        time.sleep(0.05 if len(taken) >= 5 else 0.0)
        return received

    def next_batch_noted(trainer, batches):
        batch = next_batch(trainer, batches)
        with open(f'{trainer.log.workdir}-rows-{jax.process_index()}', 'a') as file:
            print(json.dumps(batch['tokens'].tolist()), file=file)
        return batch

    def next_batch_or_stop(trainer, batches):
        taken.append(trainer)
        if len(taken) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05 if len(taken) > 5 else 0.0)
        return next_batch_noted(trainer, batches)

    def train_both(config, workdir, **opened):
        tuned = workdir.with_name('two_tuned')
        train(fill_config(json.loads(os.environ['FINE_TUNING'])).config, tuned)
        print(f'metrics of process {jax.process_index()}:', json.dumps(evaluate_workdir(tuned)), flush=True)
        if jax.process_index() == 1:
            loop.Trainer.next_batch = next_batch_or_stop
        train(config, workdir, **opened)

    loop.train, loop.Trainer.next_batch, coordinator_relay.receive_bytes = train_both, next_batch_noted, received_late
    run_command(entry.main)
"""


# train.py in which some processes send themselves a signal before a step of theirs, and those that live on take theirs
# slowly then, so that one which is killed is missed before the last step.
SIGNALLED = """
    import os, time
    import jax
    import train as entry
    from efficient_attention.training import loop
    from efficient_attention.commands.command_line import run_command

    next_batch, taken = loop.Trainer.next_batch, []

    def next_batch_or_signal(trainer, batches):
        taken.append(trainer)
        if len(taken) == int(os.environ['TURN']) and str(jax.process_index()) in os.environ['VICTIMS'].split(','):
            trainer.checkpoints.wait_until_saved()  # for what is being saved
            os.kill(os.getpid(), int(os.environ['SIGNAL']))
        time.sleep(0.3 if len(taken) >= int(os.environ['TURN']) else 0.0)
        return next_batch(trainer, batches)

    loop.Trainer.next_batch = next_batch_or_signal
    run_command(entry.main)
"""
