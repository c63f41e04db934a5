"""`python -m benchmarks.published`: each published case, its answer and ours."""

from __future__ import annotations

from benchmarks.published import answers, cases, helix


def main() -> None:
    """Print one line per case."""
    plan, cost = answers.melange(split=False)
    published = f"{cases.MELANGE_PLAN} {cases.MELANGE_COST:.2f} $/h"
    print(f"Mélange example          published {published}   here {plan} {cost:.2f} $/h")
    plan, cost = answers.melange(split=True)
    print(f"  buckets may be split                  here {plan} {cost:.2f} $/h")
    plan, _ = answers.variant_autoscaler()
    print(f"llm-d variant autoscaler published {cases.WVA_REPLICAS} x {cases.WVA_ACCELERATOR}   here {plan}")
    plan, _ = answers.scarce_inventory()
    print(f"AIBrix inventory         expected {cases.AIBRIX_PLAN}   here {plan}")
    for table in (cases.HELIX_10, cases.HELIX_24):
        found = answers.compose(table)
        print(
            f"Helix {table.name:19}published {table.helix_objective:.2f} tok/s   here {found.tokens_per_s:.2f} tok/s, "
            f"{len(found.pipelines)} pipelines, deepest {found.depth} stages"
        )
        print(f"  as columns of the planner's program   here {helix.through_program(table).tokens_per_s:.2f} tok/s")
    print("Helix's objective counts neither pipeline depth nor where KV lives: what wins here can lose when simulated.")


if __name__ == "__main__":
    main()
