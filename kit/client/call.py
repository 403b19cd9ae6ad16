"""One plain HTTP request, made from beside the server. Knows nothing of what the routes mean."""

import http.client

import msgspec


class CallResult(msgspec.Struct, frozen=True):
    """`status` 0: nothing answered, and the body says why. `body` is text; what is no UTF-8 in it is replaced."""

    status: int
    body: str


def call(method: str, path: str, body: bytes, host: str, port: int, timeout_s: float) -> CallResult:
    """Sends the request once; no answer is a result, not an error."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    headers = {"Content-Type": "application/json"} if body else {}
    try:
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        return CallResult(response.status, response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        return CallResult(0, f"{type(error).__name__}: {error}")
    finally:
        connection.close()
