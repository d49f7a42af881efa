"""How good posteriors are, beside references: scores, distances, diversity.

calibration    calibration errors, temperature scaling
detection      tell images from elsewhere: AUROC, average precision, false positives
diversity      mutual information and disagreement, of members and of all pairs
modes          the modes of a posterior, and equal shares of samples of them
forecasts      what samples predict on test images and on others, in parts
scores         QUALITY: the scores of the table, and their errors
references     independent networks and HMC, in halves, with distances to the first
gold           HMC's predictions, ours and published ones, and scores of others beside them
rows           rows of the table: sets of samples of one mode, of several
comparison     rows beside references, and means over modes
correlation    rank correlations that respect what is independent, of pairs and of rows
"""
