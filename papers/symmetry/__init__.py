"""Laurent, Aldea and Franchi (2024): what symmetries do to posteriors and their approximations.

Modules, each importing only from those before it:

    figures    the figures on symmetry, with captions
    claims     what the paper says about symmetry, judged by our results
    quality_figures    the figures on quality and diversity
    quality_claims     what the paper says about quality and diversity, judged
"""
