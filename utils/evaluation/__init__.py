"""How good posteriors are: as functions, weight by weight, and pruned.

The evaluation sees posteriors by name (utils/posteriors) and never the methods that made them.

    metrics            scores of predictions; METRICS lists those that tables show
    linearised         what Gaussians predict with the network linearised at their mean
    predictions        columns of the table, and what each predicts, in parts to resample
    functionals        numbers that do not depend on the order of hidden units
    diagnostics        R-hat and effective sample size of chains
    bias               chains that are not exact beside chains that are
    alignment          one pass over samples: rebasin, predictions and moments
    ways             further ways of rebasin, and what each of them leaves
    refinements        a scale of a Gaussian's deviations, REPAIR of its networks
    weight_study       groups of weights, their mixing, and how they compare with the prior
    setting            the settings of an evaluation, and what follows from them
    views              the distributions behind the columns
    standard_errors    how uncertain every cell of the table is
    weight_space       means and deviations of all posteriors in one frame
    checks             what diagnostics.json holds; q_r with other references, and of the prior
    pixels             weights cross-fitted over pixels, noise on dead pixels
    limits             how far to trust q_r's numbers: draws, halves, matched units
    evaluate           all of it: posteriors compared with one of them
    candidates         the posteriors that a user asks to compare, opened and checked
    pruning            which weights to keep, and what accuracy is left
    networks           networks rebased to the first of them: q_r, accuracies, barriers
"""
