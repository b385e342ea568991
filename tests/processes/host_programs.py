"""Programs that replace train.py in the processes of a run; tests/processes/test_join_hosts.py starts them."""

# Two processes first fine-tune and evaluate their run as eval.py does; then they run train.py. The second process gets
# SIGTERM before its fifth step of pretraining. A slow connection to JAX's service shows that no main thread holds
# the interpreter lock while it waits. Each process writes the tokens of its rows to a file, one line for each step.
STOPPED = """
    import json, os, signal, sys, time
    import jax
    from efficient_attention.programs import train as entry
    from efficient_attention.inference.evaluate_workdir import evaluate_workdir
    from efficient_attention.processes import coordinator_relay
    from efficient_attention.training import loop
    from efficient_attention.commands.command_line import run_command
    from efficient_attention.training.fill_config import fill_config

    train, next_batch, taken = loop.train, loop.Trainer.next_batch, []
    receive_bytes = coordinator_relay.receive_bytes

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


# Runs train.py, where some processes send themselves a signal before a given step. The surviving processes then take
# their steps slowly, so that they notice a killed process before the last step.
SIGNALLED = """
    import os, time
    import jax
    from efficient_attention.programs import train as entry
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
