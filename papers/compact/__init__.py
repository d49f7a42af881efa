"""Xiao, Liu and Bamler (2023): a Gaussian per weight, fitted after removing permutations.

values.yaml has the numbers that the paper prints.

    plan                   scripts in order, with configs and times in each preset
    tables                 Table 1, checks, other references, pruned shares
    limits                 how far to trust q_r's numbers: tables, noise on dead pixels
    independent_pair       two networks trained independently, along the line between them
    planted_pairs          pairs of networks that start as permuted copies
    permutation_figures    Figures 2 and 3: barriers and numbers of transpositions
    weight_figures         Figures 4 and 5: weights by method, pruning
    hmc_figures            HMC under priors of different width, and beside biased samplers
    verdicts               when a claim gets a mark, by its standard errors
    claims                 what the paper says, judged by our results
    paper                  all of it as one `Paper`, with the sections of the report
"""
