"""What a store's error means: judged by errors as the libraries make them."""

import errno

import aiohttp
import botocore.exceptions
import pytest
import requests
from fsspec.exceptions import FSTimeoutError
from s3fs.errors import translate_boto_error

from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.findings.finding import Entry
from flowcheck.vault.persist.store_errors import NO_SUCH_UPLOAD, store_codes, store_error_finding


def s3(code: str, status: int, message: str = "said") -> BaseException:
    """As s3fs raises what botocore raised."""
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    found = translate_boto_error(botocore.exceptions.ClientError(response, "PutObject"))
    assert isinstance(found, BaseException)
    return found


class AzureError(Exception):
    """As azure.core's HttpResponseError, whose fields azure.storage sets."""

    def __init__(self, status_code: int, error_code: str) -> None:
        super().__init__("said")
        self.status_code, self.error_code = status_code, error_code


class GcsError(Exception):
    """As gcsfs.retry.HttpError."""

    def __init__(self, code: int | str) -> None:
        super().__init__("said")
        self.code = code


def of(package: str, name: str, base: type[Exception] = Exception) -> Exception:
    """An error of a class that a library here is not installed for."""
    return type(name, (base,), {"__module__": f"{package}.core.exceptions"})("said")


def behind(error: BaseException) -> OSError:
    found = OSError(errno.EIO, "said")
    found.__cause__ = error
    return found


TOKEN_IN_PATH = OSError(errno.EIO, "/ckpt/token-mixer/connect/denied")
DENIED = [
    s3("AccessDenied", 403),
    s3("InvalidAccessKeyId", 403),
    s3("SignatureDoesNotMatch", 403),
    s3("ExpiredToken", 400),
    s3("403", 403),
    behind(botocore.exceptions.NoCredentialsError()),
    botocore.exceptions.PartialCredentialsError(provider="env", cred_var="key"),
    PermissionError("said"),
    AzureError(403, "AuthorizationFailure"),
    of("azure", "ClientAuthenticationError"),
    of("google", "DefaultCredentialsError", type(of("google", "GoogleAuthError"))),
    GcsError(401),
    OSError("Forbidden: https://storage.googleapis.com/b/bucket"),
]
NOWHERE = [
    s3("NoSuchBucket", 404),
    AzureError(404, "ContainerNotFound"),
    FileNotFoundError("https://storage.googleapis.com/upload/storage/v1/b/nobody/o"),
]
AWAY = [
    s3("SlowDown", 503),
    s3("RequestTimeout", 400),
    s3("503", 503),
    botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"),
    botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"),
    botocore.exceptions.ConnectTimeoutError(endpoint_url="http://x"),
    behind(aiohttp.ServerDisconnectedError()),
    aiohttp.ClientPayloadError(),
    requests.exceptions.ProxyError(),
    requests.exceptions.ReadTimeout(),
    FSTimeoutError(),
    TimeoutError(),
    ConnectionResetError(),
    of("azure", "ServiceRequestError"),
    of("google", "TransportError", type(of("google", "GoogleAuthError"))),
    GcsError("503"),
    AzureError(503, "ServerBusy"),
]
OTHERS = [
    s3("InvalidPart", 400),
    s3("NoSuchKey", 404),
    s3("EntityTooLarge", 400, "the access was denied to connect: no such bucket"),
    TOKEN_IN_PATH,
    ValueError("credential forbidden timed out"),
]


@pytest.mark.parametrize(
    ("error", "entry"),
    [(error, stores.ACCESS_DENIED) for error in DENIED]
    + [(error, stores.NO_BUCKET) for error in NOWHERE]
    + [(error, stores.NOT_REACHED) for error in AWAY]
    + [(error, stores.REFUSES) for error in OTHERS],
    ids=lambda one: repr(one)[:70],
)
def test_an_error_is_known_by_its_code_status_and_class(error: BaseException, entry: Entry) -> None:
    found = store_error_finding(error)
    assert found.code == entry.code
    assert type(error).__name__ in found.arguments["error"]  # type: ignore[operator]


def test_codes_are_those_of_the_store() -> None:
    assert store_codes(s3(NO_SUCH_UPLOAD, 404)) == {"NoSuchUpload"}
    assert store_codes(OSError("NoSuchUpload")) == set()


def test_errors_that_were_made_of_each_other_end() -> None:
    one, other = OSError("one"), OSError("other")
    one.__cause__, other.__cause__ = other, one
    assert store_error_finding(one).code == stores.REFUSES.code
