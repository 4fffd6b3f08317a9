import pytest

from vitrail.errors import DataError
from vitrail.evaluators.image_files import find_images


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
