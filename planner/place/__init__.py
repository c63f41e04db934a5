"""Where instances stand: the fleet as a graph of links, instances on named GPUs, and routes between them."""
