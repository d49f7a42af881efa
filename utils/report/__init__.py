"""Tables, figures and the HTML report, made from what runs have left.

tables          tables of text, printed or in the report
figures         style of all figures; training curves, chains
sweep_figure    a sweep's metric against its settings
results         the runs of a batch, read back from their directories
paper           what a paper consists of: steps, claims, figures, sections
elements        HTML from text and tables
card            the card of a published set of networks
chain           a Markov chain: its tables, and the cards of its run and predictions
published       networks and predictions for others: their scores, for the cards
page            the report: report.html with numbers.json and figures/
"""
