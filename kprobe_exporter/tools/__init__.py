"""Terminal tools as data: one YAML file a tool, their models, and the configuration that each of them is.

Takes a tool's name and the values of its options. Gives its columns, and a configuration in YAML that the
agent takes as well.
May import config, errors, grammar, labels and model.
"""
