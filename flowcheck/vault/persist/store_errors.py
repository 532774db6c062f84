"""Classifies errors of object stores and their libraries by code, HTTP status and class.

The libraries are not imported here; the error comes from whichever is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.findings.finding import Finding
from flowcheck.foreign_messages import GCSFS_FORBIDDEN

CHAIN_MOST = 8
"""Most errors in the chain of causes of an error that are examined. A choice: more than any library
makes."""
TOLD_MOST = 300
"""Most characters of an error that are shown. A choice of layout."""
NO_SUCH_UPLOAD = "NoSuchUpload"
"""S3's code for an unknown or finished multipart upload."""
NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
"""Codes of S3 and of Azure for a bucket or container that does not exist."""
DENIED_CODES = {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NotSignedUp",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "InsufficientAccountPermissions",
    "InvalidAuthenticationInfo",
    "NoAuthenticationInformation",
}
"""Codes for denied access: first S3's (API reference, error responses), then Azure's (Blob service
error codes)."""
UNREACHABLE_CODES = {
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "OperationTimedOut",
    "ServerBusy",
}
DENIED_STATUS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
UNREACHABLE_STATUS = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
UNREACHABLE_CLASSES = {
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("azure", "ServiceRequestError"),
    ("azure", "ServiceResponseError"),
    ("botocore", "ConnectionError"),
    ("botocore", "HTTPClientError"),
    ("google", "TransportError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
}
"""(package, class) of errors of a network that does not answer. Those of botocore, google and azure
are not derived from Python's own classes for this."""
DENIED_CLASSES = {
    ("azure", "ClientAuthenticationError"),
    ("botocore", "CredentialRetrievalError"),
    ("botocore", "NoAuthTokenError"),
    ("botocore", "NoCredentialsError"),
    ("botocore", "PartialCredentialsError"),
    ("botocore", "TokenRetrievalError"),
    ("google", "GoogleAuthError"),
}
"""(package, class) of errors for missing or wrong credentials."""


def store_error_finding(error: BaseException) -> Finding:
    """A finding that says why a store or its library failed, and what to do."""
    told = " ".join(f"{type(error).__name__}: {error}".split())[:TOLD_MOST]
    chain = list(_chain(error))
    codes = {code for one in chain for code in _codes(one)}
    status = {number for one in chain for number in _statuses(one)}
    classes = {found for one in chain for found in _classes(one)}
    if classes & UNREACHABLE_CLASSES:  # before denied: Google's TransportError is a GoogleAuthError
        return stores.NOT_REACHED(told)
    if codes & DENIED_CODES or status & DENIED_STATUS or classes & DENIED_CLASSES:
        return stores.ACCESS_DENIED(told)
    if any(isinstance(one, PermissionError) or _forbidden_by_gcs(one) for one in chain):
        return stores.ACCESS_DENIED(told)
    if codes & NO_BUCKET_CODES:
        return stores.NO_BUCKET(told)
    if isinstance(error, FileNotFoundError) and not codes:
        # GCS has no code: an object that may be missing is asked for where that is no error.
        return stores.NO_BUCKET(told)
    if codes & UNREACHABLE_CODES or status & UNREACHABLE_STATUS:
        return stores.NOT_REACHED(told)
    if any(isinstance(one, ConnectionError | TimeoutError) for one in chain):
        return stores.NOT_REACHED(told)
    return stores.REFUSES(told)


def store_codes(error: BaseException) -> set[str]:
    """The error codes of the store or its library in an error: "NoSuchUpload"."""
    return {code for one in _chain(error) for code in _codes(one)}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its chain of causes. fsspec's libraries translate errors of other libraries."""
    at: BaseException | None = error
    for _ in range(CHAIN_MOST):
        if at is None:
            return
        yield at
        at = at.__cause__ or at.__context__


def _codes(error: BaseException) -> Iterator[str]:
    response = getattr(error, "response", None)  # botocore's ClientError
    told = response.get("Error") if isinstance(response, dict) else None
    if isinstance(told, dict) and "Code" in told:
        yield str(told["Code"])
    code = getattr(error, "error_code", None)  # azure.core's HttpResponseError, of azure.storage
    if code is not None:
        yield str(getattr(code, "value", code))


def _statuses(error: BaseException) -> Iterator[int]:
    """The HTTP status of the answer, where the error has one."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        answer = response.get("ResponseMetadata")
        found = [answer.get("HTTPStatusCode")] if isinstance(answer, dict) else []
    else:  # of Azure, of aiohttp, of gcsfs
        found = [getattr(error, name, None) for name in ("status_code", "status", "code")]
    for one in found:
        if isinstance(one, int) or (isinstance(one, str) and one.isdigit()):
            yield int(one)


def _classes(error: BaseException) -> Iterator[tuple[str, str]]:
    """(package, name) of the error's class and of all its base classes."""
    for one in type(error).__mro__:
        yield one.__module__.partition(".")[0], one.__name__


def _forbidden_by_gcs(error: BaseException) -> bool:
    return isinstance(error, OSError) and str(error).startswith(GCSFS_FORBIDDEN)
