"""Profile + Fleet + Model + Workload + SLO become a Plan that a simulation has verified."""
