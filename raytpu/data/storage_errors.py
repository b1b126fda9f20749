"""What fsspec and the drivers below it raise, as ``DataError`` with the next step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from raytpu.errors import DataError

# pip's name for what makes a protocol work, where raytpu has an extra for it.
_EXTRAS = {"gs": "raytpu[gcs]", "gcs": "raytpu[gcs]", "http": "aiohttp", "https": "aiohttp", "s3": "s3fs"}


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Translate what goes wrong inside into a ``DataError`` that begins with ``url``.

    Maps OSError (with which local, memory and gs answer), ValueError (an unknown protocol, Arrow's complaint
    about a corrupt file), ImportError (a missing driver) and the own errors of aiohttp and gcsfs.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"{url}: does not exist; correct the path (a relative one starts at the working directory)"
        ) from error
    except PermissionError as error:
        raise DataError(f"{url}: this user may not read it; grant access or choose another path") from error
    except ImportError as error:
        package = _EXTRAS.get(url.partition("://")[0])
        install = f"pip install '{package}'" if package else "install the package it names"
        raise DataError(f"{url}: {error}; {install}") from error
    except _readable_errors() as error:
        raise DataError(f"{url}: cannot be read: {error or type(error).__name__}") from error


def _readable_errors() -> tuple[type[Exception], ...]:
    """OSError and ValueError, and the errors of loaded drivers that derive from nothing more exact."""
    errors: list[type[Exception]] = [OSError, ValueError]
    if aiohttp := sys.modules.get("aiohttp"):
        errors.append(aiohttp.ClientError)
    if gcsfs := sys.modules.get("gcsfs.retry"):
        errors.append(gcsfs.HttpError)
    return tuple(errors)
