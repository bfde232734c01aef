from slackline.plan.collective import Collective, generate, grid


def test_a_grid_has_a_column_for_each_rank_and_a_row_for_each_step() -> None:
    assert grid(generate(Collective.BROADCAST, "chain", 3, 1)).splitlines() == [
        "     rank 0    rank 1    rank 2",
        "  0  COPY_2C0  SEND_2C0  COPY_1C0",
        "  1                      SEND_0C0",
    ]


def test_a_grid_points_at_a_cell() -> None:
    assert grid(generate(Collective.ALL_REDUCE, "direct", 2), (1, 1)).splitlines() == [
        "     rank 0         rank 1",
        "  0  SEND_1C0       SEND_0C0",
        "  1  BUFFER_1C0     BUFFER_0C0     <- rank 1",
        "  2  REDUCE_ALL_C0  REDUCE_ALL_C0",
    ]


def test_the_grid_of_empty_programs_is_its_head() -> None:
    assert grid(generate(Collective.ALL_REDUCE, "ring", 1)) == "     rank 0"
