"""`python -m benchmarks.published [SECTION …]`: each published case, its answer and ours.

Sections: planning, headlines, helix, distserve, splitwise; all of them where none is named.
DistServe's and Splitwise's searches simulate some hundreds of thousands of requests: a minute with the extra [fast].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from benchmarks.published import answers, cases, distserve, headlines, splitwise
from benchmarks.published.helix import chosen_columns, simulated, through_program
from benchmarks.published.helix_memory import resident_tokens
from splitplan.planner.columns.column import Column
from splitplan.planner.simulate.compiled import has_numba
from splitplan.planner.simulate.run import Form


def main(arguments: Sequence[str]) -> None:
    """Print the lines of the named sections, or of all."""
    sections: dict[str, Callable[[], Iterator[str]]] = {
        "planning": planning,
        "headlines": headline_savings,
        "helix": helix,
        "distserve": placement_searches,
        "splitwise": cluster_designs,
    }
    unknown = [name for name in arguments if name not in sections]
    if unknown:
        sys.exit(f"no section {', '.join(unknown)}; there are {', '.join(sections)}")
    for name in arguments or sections:
        for line in sections[name]():
            print(line, flush=True)


def planning() -> Iterator[str]:
    """Inputs of planners with a single answer."""
    plan, cost = answers.melange(split=False)
    published = f"{cases.MELANGE_PLAN} {cases.MELANGE_COST:.2f} $/h"
    yield f"Mélange example          published {published}   here {plan} {cost:.2f} $/h"
    plan, cost = answers.melange(split=True)
    yield f"  buckets may be split                  here {plan} {cost:.2f} $/h"
    for whole, what in ((True, "one GPU type a bucket"), (False, "buckets shared by types")):
        plan, cost = answers.melange_by_groups(whole_kinds=whole)
        yield f"  runs of buckets, {what:30}here {plan} {cost:.2f} $/h"
    plan, _ = answers.variant_autoscaler()
    yield f"llm-d variant autoscaler published {cases.WVA_REPLICAS} x {cases.WVA_ACCELERATOR}   here {plan}"
    plan, _ = answers.scarce_inventory()
    yield f"AIBrix inventory         expected {cases.AIBRIX_PLAN}   here {plan}"


def headline_savings() -> Iterator[str]:
    """What mixing types saves, over rates of 1 to 32 req/s."""
    for (kind, tpot_ms), published in headlines.PUBLISHED_PERCENT.items():
        found = [headlines.saving(kind, tpot_ms, rate) for rate in (1.0, 4.0, 16.0, 32.0)]
        low, high = min(each.percent[0] for each in found), max(each.percent[1] for each in found)
        best = max(each.percent[0] for each in found)
        yield (
            f"Mélange headline {kind:5} TPOT {tpot_ms:3} ms  published {published[0]}–{published[1]} %   "
            f"here {low:.0f}–{high:.0f} % ({low:.0f}–{best:.0f} % against the best type): "
            f"{'; '.join(each.words for each in found)}"
        )


def helix() -> Iterator[str]:
    """Helix's node sets."""
    for table in (cases.HELIX_10, cases.HELIX_24):
        found = answers.compose(table)
        yield (
            f"Helix {table.name:19}published {table.helix_objective:.2f} tok/s   here {found.tokens_per_s:.2f} tok/s, "
            f"{len(found.pipelines)} pipelines, deepest {found.depth} stages"
        )
        yield f"  as columns of the planner's program   here {through_program(table).tokens_per_s:.2f} tok/s"
        for depth in HELIX_DEPTHS[table.name]:
            columns = chosen_columns(table, depth)
            promised = sum(1.0 / float(column.work_s_per_request[0]) for column in columns)
            words = ", ".join(f"{len(column.stages)} stages of {column.name}" for column in columns)
            held = sum(resident_tokens(table, column) for column in columns)
            yield f"  {words}: {promised:.0f} tok/s promised, {_served(table, columns)}; room for {held:,} KV tokens"
    yield "Helix's objective counts neither pipeline depth nor where KV lives."


HELIX_DEPTHS = {cases.HELIX_10.name: (64, 8), cases.HELIX_24.name: (64, 16, 12)}


def _served(table: cases.LayerTable, columns: list[Column]) -> str:
    """`606 tok/s at 40 ms for 24 users, …` of a simulated layout."""
    found = [(users, simulated(table, columns, users)) for users in (24, 96, 384)]
    return ", ".join(f"{one.tokens_per_s:.0f} at {1e3 * one.tpot_s:.0f} ms for {users} users" for users, one in found)


def placement_searches() -> Iterator[str]:
    """DistServe's placements, counts, and attainment."""
    form: Form = "numba" if has_numba() else "python"
    judged = distserve.trial("66b", form=form)
    limits: tuple[distserve.KvLimit, ...] = ("batch", "instance", "none")
    for limit in limits:
        best = distserve.pair_search(replace(judged, kv_limit=limit))[:3]
        shown = ", ".join(f"{placement} {placement.req_per_s_per_gpu:.2f}" for placement in best)
        yield f"DistServe 66B pair, KV limit per {limit:8} published (4,1 | 2,2)   here {shown} req/s per GPU"
    small = replace(distserve.trial("13b", form=form), kv_limit="none", ttft_s=distserve.RELEASED_TTFT_S)
    best = distserve.pair_search(small, (1,))[:4]
    shown = ", ".join(f"{placement} {placement.req_per_s_per_gpu:.2f}" for placement in best)
    yield f"DistServe 13B pair at 200/100 ms  published (2,1 | 1,1) 1.56 (1.88 rerun)   here {shown} req/s per GPU"
    for model, rate in (("13b", 30.0), ("66b", 30.0)):
        chosen = distserve.algorithm_1(distserve.trial(model, form=form), rate)
        per_gpu = chosen.req_per_s_per_gpu
        yield f"DistServe algorithm 1, {model} at {rate:g} req/s: here {chosen}, {per_gpu:.2f} req/s per GPU"
    for model, split, published in (("13b", (2, 1), "2.78/2.62"), ("66b", (4, 1), "0.73/0.70")):
        found = distserve.trial(model, form=form).alone("colocated", split) / split[0]
        yield f"DistServe {model} colocated, equal kernels  published {published}   here {found:.2f} req/s per GPU"
    multiples = distserve.published_multiples()
    knee, percent = distserve.attainment_curve(judged, distserve.PUBLISHED_PLACEMENT["66b"], multiples)
    yield f"DistServe-Low attainment at rate/knee {', '.join(f'{multiple:.2f}' for multiple in multiples)}"
    yield f"  published {', '.join(f'{value:g}' for value in distserve.ATTAINMENT_PERCENT)} %"
    yield f"  here      {', '.join(f'{value:.0f}' for value in percent)} % (66B, knee at {knee:.2f} req/s)"


def cluster_designs() -> Iterator[str]:
    """The highest rate at which each Splitwise design meets its nine targets."""
    for title, designs in (("iso-power", splitwise.ISO_POWER), ("iso-cost", splitwise.ISO_COST)):
        for name, design in designs.items():
            flat, measured = (splitwise.highest_rate(design, flat=value) for value in (True, False))
            known = splitwise.PUBLISHED_ISO_POWER[name] if title == "iso-power" else "–"
            yield (
                f"Splitwise {title:9} {name:14} published {known!s:4} here {flat:4} req/s on its flat token time, "
                f"{measured:4} on the measured one, {design.usd_per_hour:.0f} $/h"
            )
    machine_usd = {kind: 8 * usd for kind, usd in splitwise.USD_PER_GPU_HOUR.items()}
    for flat in (True, False):
        rates = splitwise.machine_rates(flat=flat)
        for title, budget, prices in (
            ("iso-cost", splitwise.BUDGET_MACHINES * machine_usd["H"], machine_usd),
            ("iso-power", 70.0, splitwise.POWER_UNITS),
        ):
            bought = splitwise.program_design(budget, prices, rates)
            words = " + ".join(f"{many} {name}" for name, many in bought.machines.items())
            times = "flat" if flat else "measured"
            yield f"  this program {title:9} on the {times} token time: {words}, {bought.req_per_s:.0f} req/s promised"
    meets = splitwise.meets_all_nine(splitwise.CODING_70_RPS, 70, flat=True, workload="azure-code")
    fewest = splitwise.fewest_prompt_machines(70, 3)
    yield (
        f"Splitwise coding at 70 req/s, HH 27,3: published meets all nine   here {'meets' if meets else 'misses'}; "
        f"{fewest} prompt machines are enough"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
