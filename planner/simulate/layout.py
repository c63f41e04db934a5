"""Where everything lies in the simulator's flat arrays.

The hot loop runs over plain Python lists or, compiled, over NumPy arrays. Engines, requests, transfers and links are
rows of fixed width; a row's *handle* is its offset, and a field is `array[handle + FIELD]`. The integer and the float
array of a kind share handles. Names below are the fields; `-1` means "none" in every field that holds a handle.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]
Floats = MutableSequence[float]


class World(NamedTuple):
    """All state of one simulation."""

    global_i: Ints
    global_f: Floats
    engine_i: Ints
    engine_f: Floats
    request_i: Ints
    request_f: Floats
    flow_i: Ints
    flow_f: Floats
    link_i: Ints
    link_f: Floats
    tables: Floats  # step models, one after another
    memory: Ints  # per-engine regions (heaps, block phases) and engine lists
    shares: Floats  # cumulative routing shares
    wake_s: Floats  # [leaves] next event of each source
    tree: Ints  # tournament over wake_s
    gap_edges_s: Floats  # bins of the inter-token histogram
    gap_counts: Ints


INFINITE_S = 1e300

# Sources of events, in the order in which ties are served. Engines follow.
SOURCE_CONTROL = 0
SOURCE_ARRIVAL = 1
SOURCE_FLOW = 2
FIRST_ENGINE_SOURCE = 3

# Roles
PREFILL = 0
DECODE = 1
COLOCATED = 2

# Request states
PENDING = 0
WAITING = 1  # for prefill, new or after a preemption
PREFILLING = 2
TRANSFERRING = 3  # prefill done; KV not yet at the decode instance
READY = 4  # KV delivered, waits for a slot
DECODING = 5
FINISHED = 6
REJECTED = 7

# How requests arrive
ARRIVALS_OPEN = 0
ARRIVALS_CLOSED = 1
ARRIVALS_BATCH = 2

# Routing policies
ROUTE_WEIGHTED = 0
ROUTE_ROUND_ROBIN = 1
ROUTE_LEAST_LOADED = 2
ROUTE_LEAST_TOKENS = 3

# global_i
G_REQUESTS = 0
G_NEXT = 1  # handle of the next request to arrive
G_IN_FLIGHT = 2
G_FINISHED = 3
G_REJECTED = 4
G_ARRIVALS = 5
G_CONCURRENCY = 6
G_ENTRY_LIST = 7  # offset in memory of the engines that take new requests
G_ENTRY_COUNT = 8
G_DECODE_LIST = 9
G_DECODE_COUNT = 10
G_ROUTING = 11
G_DECODE_EMITS_FIRST = 12
G_FLOWS = 13  # active transfers; their rows are dense
G_LAYERWISE = 14
G_STEPPING = 15  # 1: visit every step (for tests), 0: jump over runs
G_SPINE = 16  # link handle
G_LEAVES = 17
G_EVENTS = 18
G_PREEMPTIONS = 19
G_HAS_PREFILL = 20
G_ARRIVED = 21
G_DUE = 22  # closed and batch arrivals: handle of the next request without an arrival time
G_MOST_TOKENS = 23  # the longest request that any instance can hold
G_CACHED_ON_DECODE = 24  # 1: what the prefix cache saves is not transferred either
G_WIDTH = 32

# global_f
G_NOW = 0
G_KV_BYTES_PER_TOKEN = 1
G_TRANSFER_LATENCY_S = 2
G_BLOCK_COST_S = 3  # per KV block of the receiving engine
G_LAST_LAYER_SHARE = 4
G_THINK_S = 5
G_FLOAT_WIDTH = 8

# engine_i: what it is
E_INDEX = 0
E_ROLE = 1
E_BLOCK_TOKENS = 2
E_KV_BLOCKS = 3
E_WATERMARK_BLOCKS = 4
E_MAX_SEQS = 5
E_BUDGET_TOKENS = 6
E_RESERVE_BLOCKS = 7  # per running sequence, on admission
E_HEAP = 8  # offset in memory: running sequences by finishing step
E_PHASES = 9  # offset in memory: sequences that need a block at steps ≡ p (mod block_tokens)
E_TOKEN_TABLE = 10
E_SEQUENCE_TABLE = 11
E_HOST_TABLE = 12
E_NEW_KNOTS = 13
E_NEW_COUNT = 14
E_PAST_KNOTS = 15
E_PAST_COUNT = 16
E_PREFILL_TABLE = 17
E_CONTEXT_KNOTS = 18
E_CONTEXT_COUNT = 19
E_DECODE_TABLE = 20  # [max_num_seqs + 1, contexts]
E_LOCAL_LINK = 21
E_NODE = 22
E_RACK = 23
E_EGRESS = 24  # two link handles, NIC first
E_INGRESS = 26
E_SHARE_ROW = 28  # offset in `shares` of this entry engine's decode row
E_PREFILL_FIRST = 29  # 1: a step holds prompts or decodes, and prompts go first (SGLang, vLLM before V1)

# engine_i: its state
E_KV_FREE = 30
E_RUNNING = 31  # sequences that decode
E_CONTEXT = 32  # sum of their KV tokens
E_STEPS = 33  # decode steps done so far
E_LATEST = 34  # last admitted of the running sequences; a list backwards through R_EARLIER
E_PARTIAL = 35  # the prompt between two chunks
E_WAIT_HEAD = 36
E_WAIT_TAIL = 37
E_INCOMING_HEAD = 38  # waits for KV blocks before its transfer starts
E_INCOMING_TAIL = 39
E_READY_HEAD = 40
E_READY_TAIL = 41
E_PROMPTS = 42  # prompts that end with the current step, linked through R_LATER
E_PROMPTS_TAIL = 43
E_JOINED_COUNT = 46  # the latest so many running sequences came with their KV at the last step boundary
E_RUN_STEPS = 47  # steps of the current run; 0: idle
E_RUN_DONE = 48
E_RUN_FREE = 49  # KV_FREE when the run began
E_STEP_TOKENS = 50  # prefill tokens of the step being built
E_STEP_PROMPTS = 51  # prompts of the step being built that sample a token
E_PREEMPTED = 52  # a sequence was preempted at this boundary
E_LOAD = 53  # requests assigned and not done
E_LOAD_TOKENS = 54  # their prompt tokens
E_PREEMPTIONS = 55
E_SERVED = 56
E_STEP_COUNT = 57  # steps of any kind
E_DECODING = 58  # running sequences that get a token in the current run: all, or none while prompts go first
E_PAUSED_COUNT = 59  # running sequences that have waited for E_PAUSED_S
E_WIDTH = 64

# engine_f
E_OVERHEAD_DECODE_S = 0
E_OVERHEAD_PREFILL_S = 1
E_GAP_S = 2
E_SHARE = 3
E_RUN_START_S = 4
E_RUN_FIRST_S = 5  # duration of the run's first step
E_RUN_SLOPE_S = 6  # by which each later step is longer
E_STEP_ATTENTION_S = 7
E_BUSY_S = 8
E_CREDIT = 9  # smooth weighted round robin
E_KV_BLOCK_S = 10  # integral of held blocks over time, for the mean occupancy
E_BATCH_S = 11  # integral of running sequences over busy time
E_PAUSED_S = 12  # since the last step in which sequences decoded

# request_i
R_INPUT = 0
R_OUTPUT = 1
R_CACHED = 2  # prompt tokens that need no prefill
R_ENTRY = 3  # engine handles
R_DECODER = 4
R_COMPUTED = 5
R_TARGET = 6  # tokens to compute before it decodes (prompt, and after a preemption what it had generated)
R_GENERATED = 7
R_OFFSET = 8  # KV tokens of a decoding sequence are E_STEPS + R_OFFSET
R_FINISH_STEP = 9
R_HEAP_SLOT = 10
R_NEXT = 11  # in the queue it waits in
R_EARLIER = 12  # in the running list of its engine
R_LATER = 13
R_STATE = 14
R_PREEMPTIONS = 15
R_WIDTH = 16

# request_f
R_ARRIVAL_S = 0
R_FIRST_S = 1  # first token
R_FINISH_S = 2
R_STARTED_S = 3  # first scheduled
R_PREFILLED_S = 4
R_DELIVERED_S = 5  # KV at the decode instance
R_LAST_S = 6  # last token before a preemption
R_DRAW_ENTRY = 7  # uniform draws for routing
R_DRAW_DECODE = 8
R_FLOWN_S = 9  # layer-wise: when the bytes were through, before prefill ended

# flow_i
F_REQUEST = 0
F_LINKS = 1  # links it still loads; 0 while only latency is left
F_LINK = 2  # up to six handles
F_WIDTH = 8
MAX_PATH = 6

# flow_f
F_LEFT_BYTES = 0
F_RATE = 1
F_SINCE_S = 2
F_END_S = 3

# link_i, link_f
L_FLOWS = 0
L_UNFIXED = 1
L_WIDTH = 2
L_CAPACITY = 0
L_LEFT = 1
