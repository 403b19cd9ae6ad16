"""Where weights lie on this machine. Knows folders, not how they got there (`kit.fetch`)."""

from pathlib import Path

from kit.errors import UnusableInput
from kit.scenario import Model


def folder_name(model: Model) -> str:
    """The model's folder below the models folder: `owner--name@revision` for a hub id, the name itself otherwise."""
    if "/" not in model.path:
        return model.path
    name = model.path.replace("/", "--")
    return f"{name}@{model.revision}" if model.revision else name


def locate(model: Model, models: Path) -> Path:
    """The folder with the model's config.json; a path of the reader's own is taken as it is.

    Raises UnusableInput that names the folder looked for and how to fill it.
    """
    own = Path(model.path)
    if own.is_dir() and (own / "config.json").is_file():
        return own.resolve()
    place = models / folder_name(model)
    if not (place / "config.json").is_file():
        raise UnusableInput(
            f"model {model.path}: no {place.name}/config.json in the models folder ({models.name}/); "
            "`invoke fetch --scenario NAME` gets it, or KIT_MODELS names another folder"
        )
    return place
