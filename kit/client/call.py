"""One plain HTTP request, made from beside the server. Knows nothing of what the routes mean."""

import base64
import http.client

import msgspec


class CallResult(msgspec.Struct, frozen=True):
    """`status` 0: nothing answered, and the body says why. `body` is base64, since a reply may hold any bytes."""

    status: int
    body: str


def call(method: str, path: str, body: bytes, host: str, port: int, timeout_s: float) -> CallResult:
    """Sends the request once; no answer is a result, not an error."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    headers = {"Content-Type": "application/json"} if body else {}
    try:
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        return CallResult(response.status, _text(response.read()))
    except (OSError, http.client.HTTPException) as error:
        return CallResult(0, _text(f"{type(error).__name__}: {error}".encode()))
    finally:
        connection.close()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
