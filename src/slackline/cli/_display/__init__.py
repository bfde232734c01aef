"""A running job on a terminal, or as plain lines.

_screen          the output of rank 0, the command's notes, a progress line, and tables
_report          telemetry as a progress line and as a table with a row for each rank
_ranks_text      several ranks as a short text
_pipeline_steps  telemetry of a pipeline: a progress line, and a table at the end
"""
