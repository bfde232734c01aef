"""The page about a job, if its packages are installed."""

from typing import TYPE_CHECKING

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.dashboard import Dashboard

__all__ = ["open_page"]


def open_page(port: int | None, host: str = "127.0.0.1") -> "Dashboard":
    """Reserve a port for the page; None stands for the default port.

    Raises UsageError if the package of the server is missing, and for a wrong address or port.
    """
    try:
        from slackline.dashboard import DEFAULT_PORT, Dashboard
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("slackline"):
            raise
        raise UsageError(
            f"the page needs the package {error.name}: pip install 'slackline[dashboard]'"
        ) from None
    return Dashboard(host=host, port=DEFAULT_PORT if port is None else port)
