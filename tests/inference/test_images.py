import os

import pytest

from vitrail.errors import DataError, ImageError
from vitrail.inference.images import find_images, pixels


def touched(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_of_a_folder_the_images_that_are_not_hidden(tmp_path):
    """A camera's card or a Mac leaves ._photo.jpg and .thumbnails/ beside the photographs."""
    touched(tmp_path, "b.jpg", "a b/é.PNG", "notes.txt", "._b.jpg", ".thumbnails/b.jpg")
    assert find_images([str(tmp_path)]) == [tmp_path / "a b" / "é.PNG", tmp_path / "b.jpg"]


def test_what_is_named_is_taken_hidden_or_not(tmp_path):
    touched(tmp_path, ".hidden/b.jpg", "c [1].jpg")
    for given in (tmp_path / ".hidden" / "b.jpg", tmp_path / ".hidden", tmp_path / "c [1].jpg"):
        assert len(find_images([str(given)])) == 1


def test_a_folder_with_hidden_images_only_has_none(tmp_path):
    touched(tmp_path, "._b.jpg")
    with pytest.raises(DataError, match="no images there"):
        find_images([str(tmp_path)])


@pytest.mark.parametrize("address", ["https://host/cat.jpg", "http://host/cat?size=9", "https:/host/cat.jpg"])
def test_a_web_address_is_called_one(address):
    with pytest.raises(DataError, match="is a web address: download it first"):
        find_images([address])


def test_images_of_other_kinds_in_a_folder_are_counted_with_an_example(tmp_path, caplog, without_heif):
    touched(
        tmp_path, "a.jpg", "b/IMG_1.HEIC", "b/IMG_2.heic", "c.tga", "d.psd", "e.CR2", "notes.txt", ".f.heic"
    )
    assert find_images([str(tmp_path)]) == [tmp_path / "a.jpg"]
    (said,) = caplog.messages
    for words in (
        "2 x HEIC is not supported",
        "b/IMG_1.HEIC",
        "1 x TGA",
        "c.tga",
        "1 x PSD",
        "1 x CR2 is not supported",
    ):
        assert words in said
    assert "notes.txt" not in said and ".f.heic" not in said
    caplog.clear()
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DataError, match="no images there"):
        find_images([str(tmp_path)])
    assert "HEIC" in caplog.text


def test_links_in_a_folder(tmp_path, caplog):
    touched(tmp_path / "outside", "real.jpg")
    touched(tmp_path / "photos", "a.jpg")
    for name, target in (
        ("b.jpg", "gone.jpg"),
        ("c.jpg", "../outside/real.jpg"),
        ("d.jpg", "d.jpg"),
        ("e", "../outside"),
    ):
        (tmp_path / "photos" / name).symlink_to(target)
    os.mkfifo(tmp_path / "photos/f.jpg")
    found = find_images([str(tmp_path / "photos")])
    assert [path.name for path in found] == [
        "a.jpg",
        "b.jpg",
        "c.jpg",
        "d.jpg",
        "f.jpg",
    ]  # reading says what is wrong
    for path in (found[1], found[3], found[4]):
        with pytest.raises(ImageError, match=path.name):
            pixels(path)
    (said,) = caplog.messages
    assert "1 x a link to a folder, which is not followed" in said and "photos/e" in said


def test_what_archives_leave_is_passed_over(tmp_path):
    touched(tmp_path, "a.jpg", "__MACOSX/a.jpg", "b/__MACOSX/a.jpg")
    assert find_images([str(tmp_path)]) == [tmp_path / "a.jpg"]
