"""The one driver that runs any method.

processes   groups of modes in processes of one thread
reopening   runs that go on with more modes, or that several processes make
run_method  open, resume, step, log, checkpoint, score, finish
"""
