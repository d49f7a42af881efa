"""Laurent, Aldea and Franchi (2024): what symmetries do to posteriors and their approximations.

values.yaml has the numbers that the paper prints. Modules, each importing only from those before
it:

    values             these numbers, and the standard error of a median
    balance            cells of a grid of trainings: masses and scores, and which cells count
    collapse           how alike networks are in what they predict
    batch_norm         why networks with batch normalisation have no minimum mass
    plan               scripts in order, with configs and times in each preset
    tables             the paper's numbers next to ours, but for its Table 1
    table1             the paper's Table 1 beside ours
    quality_tables     our table of posteriors in full
    figures            the figures on symmetry, with captions
    mass_claims        what the paper says about mass and weight decay, judged by our results
    claims             what it says about symmetry, judged, and all claims in order
    quality_figures    the figures on quality and diversity
    quality_claims     what the paper says about quality and diversity, judged
    paper              all of it as one `Paper`, with the sections of the report
    resnet             Table 1 and Figure 3 with ResNet-18 on a GPU, as a `Paper` of its own
"""
