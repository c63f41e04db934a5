"""Planning inputs that others published, with their answers, answered by this program."""
