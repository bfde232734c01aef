"""The pages that a program adds to torch's debug server."""

from typing import TYPE_CHECKING

from slackline._distribution import install
from slackline.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.debug._frontend import DebugHandler

__all__ = ["debug_handlers"]


def debug_handlers() -> "list[DebugHandler]":
    """Return slackline's pages for `start_debug_server` of torch.distributed.debug.

    /slackline_links has the rates and the health of every link, and /slackline_flight the latest
    operations of all ranks. Raises UsageError without the packages that torch's server needs; the
    extra `debug` has them.
    """
    try:
        from slackline.backend._debug_pages import FlightPage, LinksPage
    except ModuleNotFoundError as error:
        raise UsageError(f"torch's debug server needs {error.name}: {install('debug')}") from error
    except ImportError as error:
        raise UsageError(
            f"slackline's pages need a newer debug server of torch: {error}"
        ) from error
    return [LinksPage(), FlightPage()]
