"""How good posteriors are: as functions, weight by weight, and pruned.

The evaluation sees posteriors by name (utils/posteriors) and never the methods that made them.

    metrics            scores of predictions; METRICS lists those that tables show
    columns            columns of the table: a posterior and a view of it
    predictions        what a posterior predicts, in parts that can be resampled
    diagnostics        R-hat and effective sample size of chains
    alignment          one pass over samples: rebasin, predictions and moments
    weight_study       groups of weights, their mixing, and how they compare with the prior
    setting            data, settings and matchers that all parts of an evaluation share
    views              the distributions behind the columns, fitted to samples or as they are
    standard_errors    how uncertain every cell of the table is
    weight_space       means and deviations of all posteriors in one frame
    reference_study    q_r with other references, and of networks drawn from the prior
    checks             what diagnostics.json holds
    evaluate           all of it: posteriors compared with one of them
    candidates         the posteriors that a user asks to compare, opened and checked
    pruning            which weights to keep, and what accuracy is left
"""
