"""How a script computes, and keeps what it makes in a run directory.

seeding    named random streams
files      files that are whole or absent, checkpoints, and files that grow
compute    device, matrix-product kernel, number of threads
progress   progress bars; checks of memory and disk before the start
ranks      several processes on one run, as torchrun starts them
script     how a script begins and how it ends
locks      directories held by one process, or by several together
lookup     earlier runs: finding, describing and identifying them
wandb_run  wandb as a listener that hears what a run measures
run        the run directory: opened, locked, resumed or refused, finished
points     the runs of a sweep, and how far they have come
jobs       scripts as processes, one or several at a time
"""
