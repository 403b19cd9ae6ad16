"""Takes this machine out of text: folders are named, not spelled. Knows nothing of what the text says."""

from pathlib import Path

from kit.measurements import write_whole


class Scrubber:
    """Replaces folders by names, the longest folder first: `/x/y/models/a` becomes `<models>/a`."""

    def __init__(self, folders: dict[str, Path]) -> None:
        pairs = [(str(form), f"<{name}>") for name, path in folders.items() for form in {path, path.resolve()}]
        self._pairs = sorted({p for p in pairs if len(p[0]) > 1}, key=lambda p: -len(p[0]))

    def scrub(self, text: str) -> str:
        """The text with every known folder named."""
        for path, name in self._pairs:
            text = text.replace(path, name)
        return text

    def scrub_file(self, path: Path) -> None:
        """Scrubs a text file in place, whole or not at all."""
        before = path.read_bytes()
        after = self.scrub(before.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        if after != before:
            write_whole(path, after)
