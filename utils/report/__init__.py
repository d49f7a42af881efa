"""Tables, figures and the HTML report, made from what runs have left.

tables          tables of text, printed or in the report
figures         style of all figures; training curves, chains
sweep_figure    a sweep's metric against its settings
results         the runs of a batch, read back from their directories
paper           what a paper consists of: steps, claims, figures, sections
chain           tables about a Markov chain
elements        HTML from text and tables
images          the PNGs that runs have left, made smaller
card            the card of a published set of networks
chain_card      the card of a run of HMC, and of its predictions as a gold standard
page            the report: report.html with numbers.json and figures/
"""
