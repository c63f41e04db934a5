"""Profile + Fleet + Model + Workload + SLO become a Plan that a simulation has verified.

The way through, one step a room:

    question, spec/      what is asked, and the files that people write
    inputs               all of it loaded and checked
    latency/             step times and memory from a profile
    columns/, classes    what one instance of each kind sustains
    study                the columns and the program of a question
    program/             which instances to run where: the integer program, its proof and its reasons
    place/               on which GPUs, and who feeds whom
    simulate/            what a request then meets: queues, batches, memory, links
    judge/               a candidate simulated against its targets, and what its misses teach
    solve, emit, plan    the search among them, and the Plan document
    show/                what people read
    review/              plans explained, compared, replayed, and planned again from what runs
    services/, schedule/ several models in one fleet; the hours of a day
    calibrate/           the step model fitted to measurements and scored against them
    cli/                 `planner`
"""
