"""The screen of `slackline top`.

_view    a job's state at one moment, as data: for the screen and for JSON
_lines   rows in columns as lines of text that fit a width
_render  a view as lines that fit a window
_keys    the keys of a terminal and the signals of the process, waited for together
_watch   the screen of a job that runs, until a key or a signal ends it
"""
