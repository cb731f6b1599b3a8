"""Counters, gauges and histograms of events and of the kernel's counts, with limits on label sets.

Takes batches of records, tallies and the kernel's counters. Gives a copy of all counters and histograms at a
scrape.
May import errors and model.
"""
