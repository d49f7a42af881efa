"""How good posteriors are: as functions, weight by weight, and pruned.

The evaluation sees posteriors by name (utils/posteriors) and never the methods that made them.

    metrics         scores of predictions, METRICS, and standard errors by resampling
    predictions     columns of the table, and what each predicts, in parts to resample
    linearised      predictions of Gaussians with the network linearised at their mean
    diagnostics     R-hat and effective sample size of chains; chains that are not exact
    weight_study    groups of weights, their mixing, and how they compare with the prior
    inexact_chains  chains of samplers that are not exact, beside exact ones
    setting         the settings of an evaluation, and what follows from them
    alignment       passes over samples: ways of rebasin, predictions and moments
    views           the distributions behind the columns
    weight_space    means and deviations of all posteriors in one frame
    checks          what diagnostics.json holds; q_r with other references, and of the prior
    cross_fitting   weights correlated where matching did not look, with errors
    limits          how far to trust q_r's numbers: draws, halves, matched units, pixels
    evaluate        posteriors opened, checked and compared with one of them, with errors
    pruning         which weights to keep, and what accuracy is left
    pruning_study   all prunings of an evaluation, with errors
"""
