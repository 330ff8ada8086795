"""Tasks: a folder for each, with its data, its models, how they are trained and measured, and its command."""
