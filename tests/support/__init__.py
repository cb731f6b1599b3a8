"""What tests of several suites share, and no test is."""
