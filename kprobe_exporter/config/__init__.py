"""The configuration: YAML files to validated values, with every problem at its line and column.

Takes the paths of files and the available decoders. Gives one frozen ``Config``, or one ConfigError with
all problems.
May import errors, grammar, model and util.
"""
