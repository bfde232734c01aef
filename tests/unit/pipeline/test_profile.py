"""Tests of the measurement of a model's layers."""

import pytest
import torch
from torch import Tensor, nn

from slackline.errors import UsageError
from slackline.pipeline import profile
from slackline.plan.partition import Cluster, Host, format_profile, parse_model, partition

FLOAT = 4
BATCH, WIDTH = 8, 64


def model():
    return nn.Sequential(
        nn.Embedding(100, WIDTH),
        nn.Linear(WIDTH, 4 * WIDTH),
        nn.GELU(),
        nn.Linear(4 * WIDTH, WIDTH),
    )


def tokens():
    return torch.randint(0, 100, (BATCH,))


def test_a_profile_has_the_sizes_of_the_layers():
    found = profile(model(), tokens(), repeats=2)
    names = [each.name for each in found.layers]
    assert names == ["0 Embedding", "1 Linear", "2 GELU", "3 Linear"]
    outputs = [BATCH * WIDTH, BATCH * 4 * WIDTH, BATCH * 4 * WIDTH, BATCH * WIDTH]
    assert [each.output_bytes for each in found.layers] == [FLOAT * each for each in outputs]
    parameters = [100 * WIDTH, 4 * WIDTH * (WIDTH + 1), 0, WIDTH * (4 * WIDTH + 1)]
    assert [each.parameter_bytes for each in found.layers] == [FLOAT * each for each in parameters]
    # The embedding keeps 8-byte tokens; the other layers keep their inputs.
    kept = [8 * BATCH, FLOAT * BATCH * WIDTH, *[FLOAT * BATCH * 4 * WIDTH] * 2]
    assert [each.activation_bytes for each in found.layers] == kept


def test_times_are_there_where_the_runtime_has_such_a_backward():
    embedding, linear, gelu, last = profile(model(), tokens(), repeats=3).layers
    assert all(each.forward_ps > 0 for each in (embedding, linear, gelu, last))
    assert (embedding.backward_input_ps, gelu.backward_weight_ps) == (0, 0)
    assert embedding.backward_weight_ps > 0
    assert gelu.backward_input_ps > 0
    for each in (linear, last):
        assert each.backward_input_ps > 0
        assert each.backward_weight_ps > 0


def test_the_profile_is_one_that_is_cut():
    found = profile(list(model()), tokens(), repeats=1, parameter_copies=2)
    assert parse_model(format_profile(found), "model.json").profile == found
    cluster = Cluster(hosts=(Host(name="a", devices=2),))
    assert partition(found, cluster, 2, 4, effort=0.1).cut.stages == 2


def test_nothing_of_the_model_changes():
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4))
    layers[0].weight.grad = torch.ones(4, 4)
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    random = torch.random.get_rng_state()
    profile(layers, torch.ones(3, 4), repeats=2)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.equal(layers[0].weight.grad, torch.ones(4, 4))
    assert layers[3].weight.grad is None
    for name, value in layers.state_dict().items():
        assert torch.equal(value, before[name]), name


class Two(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 2 * x


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y).view(-1)


def test_layers_may_pass_several_tensors_and_views():
    layers = [nn.Linear(4, 4), Two(), Sum(), nn.Flatten(0), Two()]
    found = profile(layers, torch.ones(2, 4), repeats=1)
    assert [each.output_bytes for each in found.layers] == [32, 64, 32, 32, 64]


def test_a_frozen_first_layer_has_no_backward():
    frozen = nn.Linear(4, 4).requires_grad_(False)
    first, second = profile([frozen, nn.Linear(4, 4)], torch.ones(2, 4), repeats=1).layers
    assert (first.backward_input_ps, first.backward_weight_ps) == (0, 0)
    assert second.backward_input_ps > 0


class Named(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


@pytest.mark.parametrize(
    ("modules", "options", "message"),
    [
        ([], {}, "modules must have at least one layer"),
        ([nn.ReLU(), 3], {}, "modules[1] must be a module, not int"),
        ([nn.ReLU()], {"repeats": 0}, "repeats must be a positive integer, not 0"),
        (
            [nn.ReLU(), Named()],
            {},
            "the output of layer 1 Named must be a tensor or a tuple of tensors, not dict",
        ),
    ],
)
def test_wrong_layers_are_refused(modules, options, message):
    with pytest.raises(UsageError) as error:
        profile(modules, torch.ones(2, 4), **options)
    assert str(error.value) == message


def test_an_example_must_be_of_tensors():
    with pytest.raises(
        UsageError, match=r"^example_input must be a tensor or a tuple of tensors, "
    ):
        profile([nn.ReLU()], "x")
    with pytest.raises(UsageError, match=r"^example_input must have at least one tensor$"):
        profile([nn.ReLU()], ())
