"""How good posteriors are as a table shows it: calibration, detection, diversity.

images         test images, and images from elsewhere
calibration    calibration errors, temperature scaling
detection      tell images from elsewhere: AUROC, average precision, false positives
diversity      mutual information and disagreement, of members and of all pairs
correlation    rank correlations that respect what is independent
"""
