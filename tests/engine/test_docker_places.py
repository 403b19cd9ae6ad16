"""Where model folders lie in a container; needs no daemon."""

from pathlib import Path

import pytest

from kit.engine.docker import in_container, model_mounts
from kit.errors import UnusableInput


def test_a_plain_folder_is_mounted_by_itself_and_arguments_follow(tmp_path: Path) -> None:
    target, draft = tmp_path / "target", tmp_path / "draft"
    target.mkdir()
    draft.mkdir()
    mounts, places = model_mounts([target, draft, target])
    assert mounts == {str(target): "/models/0-target", str(draft): "/models/1-draft"}
    assert in_container(str(draft), places) == "/models/1-draft"
    assert in_container(f"{draft}/template.jinja", places) == "/models/1-draft/template.jinja"
    assert in_container(f"{draft}-other", places) == f"{draft}-other" and in_container("--port", places) == "--port"


def test_two_folders_of_one_name_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "model", tmp_path / "b" / "model"]
    for folder in folders:
        folder.mkdir(parents=True)
    assert len(set(model_mounts(folders)[1].values())) == 2


def test_the_hubs_cache_of_links_is_mounted_with_what_the_links_point_to(tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    snapshot, blob = repository / "snapshots" / "c0ffee", repository / "blobs" / "1"
    snapshot.mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_text("{}")
    (snapshot / "config.json").symlink_to(Path("../../blobs/1"))
    mounts, places = model_mounts([snapshot])
    assert mounts == {str(repository): "/models/0-models--owner--name"}
    assert places[snapshot] == "/models/0-models--owner--name/snapshots/c0ffee"


def test_links_that_would_need_the_whole_machine_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(UnusableInput, match="its links lead far away"):
        model_mounts([tmp_path])
