"""Where everything lies in the simulator's two flat arrays, one of integers and one of floats.

The hot loop runs over plain Python lists or, compiled, over NumPy arrays. Globals, engines, requests, transfers and
links are rows of fixed width, at the same offsets in both arrays; a row's offset is its *handle*, and a field is
`ints[handle + FIELD]` or `floats[handle + FIELD]`. Tables, heaps and the like follow the rows; globals and engines hold
their offsets. `-1` means "none" in every field that holds a handle.

An engine is one *lane* of an instance: an instance of s pipeline stages has s lanes, micro-batches that take turns on
the stages. They share queues and KV blocks, which lie in the first lane's row, the instance's *home*.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]
Floats = MutableSequence[float]


class World(NamedTuple):
    """All state of one simulation."""

    ints: Ints
    floats: Floats


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

# Whether an instance takes requests
UP = 1
DRAINING = 2

# How requests arrive
ARRIVALS_OPEN = 0
ARRIVALS_CLOSED = 1
ARRIVALS_BATCH = 2

# Routing policies
ROUTE_WEIGHTED = 0
ROUTE_ROUND_ROBIN = 1
ROUTE_LEAST_LOADED = 2
ROUTE_LEAST_TOKENS = 3
ROUTE_PREFIX_AWARE = 4

# Globals, integers
G_FIRST_ENGINE = 0
G_END_ENGINE = 1
G_FIRST_REQUEST = 2
G_END_REQUEST = 3
G_FREE_FLOW = 4  # rows given back, linked through F_LEFT
G_END_FLOW = 5  # rows from here on have never been used
G_LEAVES = 6
G_TREE = 7  # tournament over the sources of events
G_WAKE = 8  # floats: next event of each source
G_GAPS = 9  # histogram of inter-token times
G_EDGES = 10  # floats: its bins
G_EDGE_COUNT = 11
G_NEXT = 12  # the next request to arrive
G_DUE = 13  # closed and batch arrivals: the next request without an arrival time
G_ARRIVALS = 14
G_CONCURRENCY = 15
G_ARRIVED = 16
G_IN_FLIGHT = 17
G_FINISHED = 18
G_REJECTED = 19
G_PREEMPTIONS = 20
G_EVENTS = 21
G_ENTRY_LIST = 22  # offset of the list of homes that take new requests
G_ENTRY_COUNT = 23
G_DECODE_LIST = 24
G_DECODE_COUNT = 25
G_ENTRY_SHARES = 26  # floats: their cumulative shares
G_ROUTING = 27
G_DECODE_EMITS_FIRST = 28
G_LAYERWISE = 29
G_STEPPING = 30  # 1: visit every step (for tests), 0: jump over runs
G_SPINE = 31
G_STORE = 34  # prefix cache all instances share; -1: none
G_HASH_TOKENS = 35  # tokens of one block of the prefix caches
G_LIMBO_HEAD = 36  # requests that no instance can take for now
G_LIMBO_TAIL = 37
G_NEXT_CHANGE = 38
G_END_CHANGE = 39
G_RESTARTS = 40
G_DECODE_ALONE = 41  # 1: decode instances take new requests, prefilled elsewhere
G_FIRST_LINK = 33
G_CACHED_ON_DECODE = 32  # 1: what the prefix cache saves is not transferred either
G_FIRST_WAY = 42
G_FREE_WAY = 43  # rows given back, linked through W_NEXT
G_END_WAY = 44  # rows from here on have never been used
G_WAYS = 45  # offset of the list of ways in use
G_WAY_COUNT = 46
G_TRAILING = 47  # heap of the flows whose bytes are through: only latency is left
G_ORDER = 48  # flows started so far
G_STAMP = 49  # links and ways marked with it belong to the neighbourhood being shared anew
G_KINDS = 50  # kinds of instances that G_COSTS tells apart
G_COSTS = 51  # floats: [kind of sender, kind of receiver, 1 inside a node, 4]: latency, per block, windowed, copies
G_STORE_LINK = 52
G_WINDOW = 53  # tokens that layers with a window see
G_LIMITS = 54  # floats: the distinct limits on inter-token times
G_LIMIT_COUNT = 55
G_WIDTH = 64

# Globals, floats
G_NOW = 0
G_KV_BYTES_PER_TOKEN = 1
G_WINDOWED_BYTES_PER_TOKEN = 2  # of them, in layers with a window
G_KV_BYTES_PER_SEQUENCE = 3  # beside its tokens
G_LAST_LAYER_SHARE = 4
G_THINK_S = 5

# Engines, integers: what it is
E_INDEX = 0  # among all engines: its source of events
E_ROLE = 1
E_BLOCK_TOKENS = 2
E_KV_PAGES = 3  # KV memory, in pages: blocks, or with windows the parts of a block that come and go together
E_WATERMARK_PAGES = 4
E_MAX_SEQS = 5
E_BUDGET_TOKENS = 6
E_RESERVE_PAGES = 7  # per running sequence, on admission
E_HEAP = 8  # offset: running sequences by finishing step
E_PHASES = 9  # offset: sequences that need a block at steps ≡ p (mod block_tokens)
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
E_SHARE_ROW = 28  # floats: cumulative shares of the decode instances, for an entry instance
E_HOME = 29

# Engines, integers: its state
E_KV_FREE = 30  # home, pages
E_RUNNING = 31  # sequences that decode
E_CONTEXT = 32  # sum of their KV tokens
E_STEPS = 33  # decode steps done so far
E_LATEST = 34  # last admitted of the running sequences; a list backwards through R_EARLIER
E_PARTIAL = 35  # the prompt between two chunks (home)
E_WAIT_HEAD = 36  # home
E_WAIT_TAIL = 37
E_INCOMING_HEAD = 38  # home: waits for KV blocks before its transfer starts
E_INCOMING_TAIL = 39
E_READY_HEAD = 40  # home: KV delivered, waits for a slot
E_READY_TAIL = 41
E_PROMPTS = 42  # prompts that end with the current step, linked through R_LATER
E_PROMPTS_TAIL = 43
E_JOINED_COUNT = 44  # the latest so many running sequences came with their KV at the last step boundary
E_RUN_STEPS = 45  # steps of the current run; 0: idle
E_RUN_DONE = 46
E_RUN_FREE = 47  # KV_FREE when the run began
E_STEP_TOKENS = 48  # prefill tokens of the step being built
E_STEP_PROMPTS = 49  # prompts of the step being built that sample a token
E_PREEMPTED = 50  # a sequence was preempted at this boundary
E_LOAD = 51  # home: requests assigned and not done
E_LOAD_TOKENS = 52  # home: their prompt tokens
E_PREEMPTIONS = 53
E_SERVED = 54  # home
E_STEP_COUNT = 55
E_LANES = 56  # pipeline stages, as many as micro-batches in flight
E_DECODING = 58  # running sequences that get a token in the current run: all, or none while prompts go first
E_PAUSED_COUNT = 59  # running sequences that have waited for E_PAUSED_S
E_PREFILL_FIRST = 60  # 1: a step holds prompts or decodes, and prompts go first (SGLang, vLLM before V1)
E_STATIC = 61  # 1: a batch takes nobody in once it has begun to decode
E_OPEN = 62  # 1: requests may join (always, unless E_STATIC)
E_CACHE = 63  # home: prefix cache in HBM; -1: none
E_HOST_CACHE = 64  # home: prefix cache in host memory; -1: none
E_HASH_PAGES = 65  # pages of one block of the prefix cache, in layers without a window
E_UP = 66  # home: takes requests (UP), finishes what it has (DRAINING), or is down (0)
E_NEXT_ROLE = 67
E_FULL_PAGES = 68  # pages of one block in the layers that keep every token
E_WINDOW_PAGES = 69  # and in those that keep a window; 0: there are none, or the engine does not free what left it
E_PROMPT_BLOCKS = 70  # most blocks that a prompt holds in layers with a window
E_LEAVING = 71  # offset: sequences past the window whose oldest block leaves it at steps ≡ p (mod block_tokens)
E_CROSSING = 72  # offset: sequences whose first block leaves the window at step s, at s modulo the size
E_CROSSING_SIZE = 73
E_KIND = 74  # row and column of G_COSTS
E_WAYS = 75  # home: ways in use that start here, linked through W_NEXT
E_HOST_LINK = 76  # home: the link that reads from host memory share
E_READ_FLOW = 77  # the read that the current step waits for; -1: none
E_SLOW = 78  # offset: steps so far that were longer than each limit on inter-token times
E_ABOVE_TOKENS = 79  # takes prompts of more than these,
E_SEQUENCE_PAGES = 82  # what every sequence holds beside its tokens (layers with a state instead of a cache)
E_ARRIVING = 81  # home: sequences that hold blocks while their KV is under way, or wait for a slot with it
E_UP_TO_TOKENS = 80  # and of no more than these; 0: no bound
E_LANE = 57  # number of this lane; its row also holds the state of the stage of that number
E_UNLIKE = 90  # 1: the stages are not alike, and the rows of the lanes hold the tables of the stages of their numbers
E_WIDTH = 96

# Engines, floats
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
E_KV_PAGE_S = 10  # integral of held pages over time, for the mean occupancy
E_BATCH_S = 11  # integral of running sequences over busy time
E_READY_S = 12  # pipelines: when the lane's last step ended
E_STAGE_FREE_S = 13  # pipelines: when the stage of this lane's number is free
E_HANDOFF_S = 14
E_PAUSED_S = 16  # since the last step in which sequences decoded
E_HOST_READ_BYTES = 17  # KV that the step being built reads from host memory
E_STORE_READ_BYTES = 20  # and from the shared store
E_BACK_S = 18  # home: when it is up again
E_RELOAD_S = 19  # home: from drained to up in the next role
E_CHUNKS_S = 30  # unlike stages: attention of the step's prompt chunks on the stage of this lane's number
E_STAGE_S = 15  # time of the current step on one stage

NOWHERE_NOW = -2  # instead of a handle: instances could take it, but none is up

# Requests, integers
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
R_SHARED = 16  # leading prompt blocks it shares with a prefix cache
R_PREFIX = 17  # offset of its prompt blocks' numbers
R_PREFIX_COUNT = 18  # whole blocks of its prompt
R_AT = 19  # the instance it waits or runs at
R_FLOW = 20  # the transfer of its KV; -1: none
R_SLOW_GAPS = 21  # inter-token times longer than its limit; while it decodes, less E_SLOW when it joined
R_LIMIT = 22  # which limit on inter-token times is its own; -1: none
R_WIDTH = 23

# Requests, floats
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

# Flows, integers and floats: one transfer, or one engine's read from host memory or the store
F_OWNER = 0  # request or engine
F_IS_READ = 1
F_WAY = 2  # the way its bytes take; -1 once they are through
F_LEFT = 3  # heap
F_RIGHT = 4
F_ORDER = 5  # breaks ties
F_WIDTH = 6
F_KEY = 0  # in a way: W_SERVED at which its bytes are through; in G_TRAILING: seconds

# Ways, integers: all flows that cross the same links, and so get the same rate
W_SENDER = 0  # instances; -1 for reads
W_RECEIVER = 1
W_NEXT = 2  # in the sender's list
W_FLOWS = 3
W_HEAP = 4  # its flows, first to finish on top
W_SLOT = 5  # its place in G_WAYS
W_LINKS = 6
W_STAMP = 7
W_LINK = 8  # up to five handles
W_LATER = 13  # the next crossing in each link's list
W_EARLIER = 18
W_WIDTH = 23
MAX_PATH = 5
COST_WIDTH = 4

# Ways, floats
W_RATE = 0  # of each flow
W_SERVED = 1  # bytes that a flow present from the beginning had got at W_SINCE_S
W_SINCE_S = 2
W_END_S = 3

# Links, integers and floats
L_FLOWS = 0
L_UNFIXED = 1
L_FIRST = 2  # list of ways that cross it: their handles plus their link's number
L_STAMP = 3
L_NEXT = 4  # in the list of links being shared anew
L_WAY = 5  # the way of the reads that take this link alone
L_WIDTH = 6
L_CAPACITY = 0
L_LEFT = 1

# Prefix caches, integers: a header, then a slot per known block
C_OLDEST = 0
C_NEWEST = 1
C_COUNT = 2  # blocks that nobody uses
C_CAPACITY = 3
C_SIZE = 4
C_SLOTS = 5
C_REFERENCES = 0  # requests that use the block; -1: not held
C_PREVIOUS = 1
C_NEXT = 2
C_SLOT_WIDTH = 3

# Changes, integers and floats
K_ENGINE = 0
K_KIND = 1
K_ROLE = 2
K_WIDTH = 3
K_TIME_S = 0
K_RELOAD_S = 1
CHANGE_FAIL = 0
CHANGE_RESTART = 1
CHANGE_ROLE = 2
