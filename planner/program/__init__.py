"""The integer program: which columns, how many, where; with a proof."""
