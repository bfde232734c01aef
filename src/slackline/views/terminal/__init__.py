"""A job on a terminal: the screen of `slackline top`, and the output of `slackline run`.

_view    a job's state at one moment, as data: for the screen and for JSON
_lines   rows in columns as lines of text that fit a width
_render  a view as lines that fit a window
_keys    the keys of a terminal and the signals of the process, waited for together
_show    the screen of a job that runs, until a key or a signal ends it
_screen  the display of a job's output, with or without a line of progress
_report  the progress, the messages and the tables of a job that this command has started
_pipeline_steps, _ranks_text    steps of pipelines, and ranks, as text
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.views.terminal._ranks_text import ranks_text
    from slackline.views.terminal._render import screen_of
    from slackline.views.terminal._report import Report
    from slackline.views.terminal._screen import PlainScreen, Screen, open_screen
    from slackline.views.terminal._show import show
    from slackline.views.terminal._view import view_of
else:
    __getattr__ = lazily(
        __name__,
        {
            "_ranks_text": "ranks_text",
            "_render": "screen_of",
            "_report": "Report",
            "_screen": "PlainScreen Screen open_screen",
            "_show": "show",
            "_view": "view_of",
        },
    )

__all__ = [
    "PlainScreen",
    "Report",
    "Screen",
    "open_screen",
    "ranks_text",
    "screen_of",
    "show",
    "view_of",
]
