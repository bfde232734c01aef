"""Tests of estimated link parameters from the durations of plans."""

import pytest

from slackline.nic._calibration import LARGE_BYTES, mesh_terms
from slackline.plan.collective import Collective, CostParameters, estimate, generate


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ranks", [*range(2, 10), 16, 33])
@pytest.mark.parametrize("nbytes", [LARGE_BYTES, 1 << 10, 100])
def test_the_terms_of_a_mesh_are_those_that_its_plan_has(
    nbytes: int, ranks: int, shared: bool
) -> None:
    unit = CostParameters(
        latency_ns=0, bytes_per_second=1, reduce_bytes_per_second=1, shared_memory=shared
    )
    whole = estimate(generate(Collective.ALL_REDUCE, "mesh", ranks), nbytes, unit)
    terms = mesh_terms(nbytes, ranks, shared_memory=shared)
    assert (terms.steps, terms.messages, terms.port_bytes, terms.reduced_bytes) == (
        whole.steps,
        whole.messages,
        whole.port_bytes,
        whole.reduced_bytes,
    )
