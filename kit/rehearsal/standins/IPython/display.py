"""The two names that `sglang.utils` imports; both refuse to be used."""

from typing import NoReturn


def display(*_objects: object) -> NoReturn:
    """Refuse: nothing in a server shows notebook output."""
    raise NotImplementedError("IPython is a stand-in of kit/rehearsal: there is no notebook")


HTML = display
