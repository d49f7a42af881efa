"""Settings of scripts, and what users are told about them.

errors   UserError: a mistake the user can correct, shown as one sentence
wording  numbers with their nouns
values   values that users write: read, converted and checked
config   settings from defaults, YAML and the command line
sweeps   the points of a grid or random search
"""
