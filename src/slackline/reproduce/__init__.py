"""A comparison of published figures with the simulator's figures for the same parameters.

tables/        a TOML file for each table: published figures, with their source and unit
experiments/   a TOML file for each experiment, as `slackline simulate` reads it
_published.py  a table as data, read from its file
_folder.py     the folder of tables and experiments: the packaged one, or a changed copy
_compare.py    the comparison of a table's figures with those of its experiment
_plot.py       a comparison as a figure (needs the extra `plot`)
_accuracy.py   the accuracy of a network that a real job trains in two ways
"""

from slackline.reproduce._accuracy import Accuracy, Trained, read_accuracy, train_both_ways
from slackline.reproduce._compare import ComparedRow, Comparison, compare
from slackline.reproduce._folder import Folder
from slackline.reproduce._plot import draw
from slackline.reproduce._published import PublishedRow, PublishedTable, read_table

__all__ = [
    "Accuracy",
    "ComparedRow",
    "Comparison",
    "Folder",
    "PublishedRow",
    "PublishedTable",
    "Trained",
    "compare",
    "draw",
    "read_accuracy",
    "read_table",
    "train_both_ways",
]
