"""How good posteriors are, beside references: scores, distances, diversity.

calibration    calibration errors, temperature scaling
detection      tell images from elsewhere: AUROC, average precision, false positives
diversity      mutual information and disagreement, of members and of all pairs
correlation    rank correlations that respect what is independent
images         test images, and images from elsewhere
modes          the modes of a posterior, and equal shares of samples of them
forecasts      what samples predict, in parts
scores         QUALITY: the scores of the table, and their errors
references     independent networks and HMC, in halves, with distances to the first
gold           HMC's predictions in a file, and scores of others beside them
rows           rows of the table: sets of samples of one mode, of several
comparison     rows beside references, and means over modes
relations      distances beside scores, and the order of methods by two references
published      published predictions of HMC, in the order of the test images
"""
