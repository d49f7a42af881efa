"""Settings of scripts, and the errors that users can correct.

errors   UserError: a mistake the user can correct, shown as one sentence
wording  numbers with their nouns
values   values that users write: read, converted and checked
config   settings from defaults, YAML and the command line
sweeps   the points of a grid or random search
"""
