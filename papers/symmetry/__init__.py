"""Laurent, Aldea and Franchi (2024): what symmetries do to posteriors and their approximations.

Modules, each importing only from those before it:

    figures    the figures on symmetry, with captions
    claims     what the paper says about symmetry, judged by our results
"""
