"""Queues, batches, KV memory and links, step by step: the judge of every plan."""
