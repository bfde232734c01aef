"""The functions that torch calls by slackline's entry points.

torch imports this module at the end of its own import, in every environment where slackline is
installed. The module therefore imports nothing at its top, and its functions raise nothing: what
goes wrong here is told to those who ask for a group.
"""

__all__ = ["on_request", "on_torch_import"]


def on_torch_import() -> None:
    """Register slackline with torch; torch calls this at the end of `import torch`.

    A torch that calls `on_request` when a program names slackline needs nothing now, unless
    SLACKLINE_AS asks slackline to serve the groups of another backend.
    """
    try:
        import os

        from torch import distributed

        if not distributed.is_available():
            return
        late = hasattr(distributed.Backend, "_ensure_backend_registered")
        if late and not os.environ.get("SLACKLINE_AS"):
            return
    except Exception as error:
        _refuse_groups(error)
    else:
        on_request()


def on_request() -> None:
    """Register slackline with torch; a newer torch calls this when a program names slackline."""
    try:
        from slackline._registration import register

        register()
    except Exception as error:
        _refuse_groups(error)


def _refuse_groups(reason: Exception) -> None:
    """Have torch raise `reason` for each group that slackline was to open.

    With SLACKLINE_AS these are all groups: a job that asks for slackline in place of another
    backend must not run over that backend unnoticed.
    """
    import os

    from torch import distributed

    if not distributed.is_available():
        return
    where = reason.__traceback__

    def refuse(*args: object, **kwargs: object) -> object:
        raise reason.with_traceback(where)

    distributed.Backend.register_backend(
        "slackline", refuse, extended_api=True, devices=["cpu", "cuda"]
    )
    if os.environ.get("SLACKLINE_AS"):
        from torch.distributed import distributed_c10d

        distributed_c10d._new_process_group_helper = refuse
