"""The request mix that columns are judged on: one seeded sample of arrivals and lengths, with each class's targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.spec.slo import Slo, Target
from splitplan.planner.spec.workload import Requests

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OUTPUT_BINS = 64


@dataclass(frozen=True)
class RequestMix:
    """A sample of n requests in order of arrival, with the targets that hold for each. Gaps have a mean of one."""

    gap: FloatArray  # [n] inter-arrival time in units of its mean
    input_tokens: FloatArray  # [n]
    new_tokens: FloatArray  # [n] input tokens that no cache holds
    output_tokens: FloatArray  # [n]
    class_index: IntArray  # [n]
    num_classes: int
    ttft_limit_s: FloatArray  # [n] inf without a target
    tpot_limit_s: FloatArray  # [n]
    ttft_miss_share: float  # of requests that may miss TTFT
    tpot_miss_share: float
    max_model_len: int

    @cached_property
    def context_tokens(self) -> float:
        """Mean context of a decoding sequence, each weighted by how long it decodes."""
        context = self.input_tokens + self.output_tokens / 2
        return float(np.average(context, weights=self.output_tokens))

    @cached_property
    def context_std_tokens(self) -> float:
        """Standard deviation of the context over decoding sequences."""
        context = self.input_tokens + self.output_tokens / 2
        variance = np.average((context - self.context_tokens) ** 2, weights=self.output_tokens)
        return float(np.sqrt(variance))

    @cached_property
    def output_quantiles(self) -> FloatArray:
        """Output tokens at the middle of OUTPUT_BINS equal shares of the requests."""
        return np.quantile(self.output_tokens, (np.arange(OUTPUT_BINS) + 0.5) / OUTPUT_BINS)

    @cached_property
    def tpot_limit(self) -> float:
        """The tightest TPOT target of any class, seconds."""
        return float(self.tpot_limit_s.min())

    def class_means(self, values: FloatArray) -> FloatArray:
        """Mean of `values` [n] per class [num_classes]; the overall mean where a class was not sampled."""
        totals = np.bincount(self.class_index, values, self.num_classes)
        counts = np.bincount(self.class_index, minlength=self.num_classes)
        means: FloatArray = np.where(counts > 0, totals / np.maximum(counts, 1), float(values.mean()))
        return means


def request_mix(
    requests: Requests, slos: Sequence[Slo], *, max_model_len: int, front_end_s: FloatArray | float = 0.0
) -> RequestMix:
    """Build the mix from sampled requests and the SLO of each class; `front_end_s` [n] is taken off the TTFT limits.

    A request of one token has no TPOT, so no limit holds for it.
    """
    gaps = np.diff(requests.arrival_s, prepend=0.0)
    tpot_limit_s = _limits([slo.tpot for slo in slos])[requests.class_index]
    return RequestMix(
        gap=gaps / max(float(gaps.mean()), 1e-12),
        input_tokens=requests.input_tokens.astype(np.float64),
        new_tokens=np.maximum(requests.input_tokens - requests.cached_tokens, 1).astype(np.float64),
        output_tokens=requests.output_tokens.astype(np.float64),
        class_index=requests.class_index,
        num_classes=len(slos),
        ttft_limit_s=_limits([slo.ttft for slo in slos])[requests.class_index] - front_end_s,
        tpot_limit_s=np.where(requests.output_tokens > 1, tpot_limit_s, np.inf),
        ttft_miss_share=miss_share([slo.ttft for slo in slos], slos),
        tpot_miss_share=miss_share([slo.tpot for slo in slos], slos),
        max_model_len=max_model_len,
    )


def _limits(targets: Sequence[Target | None]) -> FloatArray:
    return np.array([target.seconds if target else np.inf for target in targets])


def miss_share(targets: Sequence[Target | None], slos: Sequence[Slo]) -> float:
    """The strictest share over classes: no more than the percentile, nor the joint attainment, allows."""
    shares = [1 - slo.attainment for slo in slos] + [1 - target.percentile / 100 for target in targets if target]
    return max(min(shares), 1e-6)
