"""Tests that `step`, `eval` and `step_microbatches` take the arguments of torch's schedules."""

import pipeline_surface as surface

WITHIN = (
    "UsageError: step needs gradients, but was called within torch.no_grad() or "
    "torch.inference_mode(); `eval` runs the forwards without gradients"
)
REFUSED = [
    WITHIN,
    WITHIN,
    "UsageError: losses must be a list to fill, not a tuple",
    "UsageError: loss_kwargs must be a dict of loss_fn's arguments, not a list",
    "UsageError: there are no losses to fill in, because the schedule has no loss_fn",
    "UsageError: a target of shape [] cannot be cut into microbatches: Dimension specified as 0 "
    "but tensor has no dimensions; pass a tensor without dimensions as a number",
    "UsageError: a batch of shape [8, 12], [8, 12] cannot be cut into microbatches: "
    "args_dict.keys() = ['mask', 'other'] args_chunk_spec.keys() = ['mask']",
    "UsageError: stage 0, F0: output 1 must be a tensor, not int. Return the tensors for the next "
    "stage in one tuple; give other values to `step` as keyword arguments on the rank of the stage "
    "that takes them.",
]


def test_arguments_of_every_kind_reach_stages_and_loss_as_in_one_process(job):
    job(2, surface.arguments)


def test_arguments_may_be_left_out_as_with_torchs_schedules(job):
    job(2, surface.ways_to_call)


def test_calls_that_cannot_be_right_are_refused_with_a_way_out(job):
    first, last = job(2, surface.refused)
    for place, message in enumerate(REFUSED):
        assert message in (first[place], last[place])
        other = ({first[place], last[place]} - {message} or {message}).pop()
        # Only an eval's first rank may be done before the last stage's rank refuses the call.
        permitted = ("PeerError: ", message, *(["nothing"] if "no losses" in message else []))
        assert other.startswith(permitted)


def test_a_loss_without_a_target_says_who_gave_none(job):
    first, last = job(2, surface.no_target)
    assert first == "PeerError"
    assert last == [
        "the target is None: the last stage's rank gave `step` no `target`",
        "while rank 1 computed stage 1, F0",
    ]


def test_outputs_that_cannot_be_merged_are_refused_after_a_step_that_counts(job):
    first, last = job(2, surface.not_merged)
    assert first == ["nothing", "nothing"]
    refused = (
        "UsageError: value 1 of the output is of type object and differs between microbatches, so "
        "it cannot be merged: step_microbatches returns the outputs one by one, and "
        "return_outputs=False returns none"
    )
    assert last == [refused, refused]
