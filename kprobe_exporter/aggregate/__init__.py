"""From events and the kernel's counts to numbers that only grow, bounded in their label sets.

Takes batches of records, tallies and the kernel's counters. Gives a copy of all counters and histograms
at a scrape.
May import model.
"""
