"""URLs of checkpoint stores. A URL that looks like an object store is never silently used as a folder."""

import pytest

from holdfast.infra.storage.errors import StorageUnusable
from holdfast.infra.storage.objects import FsspecObjects


@pytest.mark.parametrize("url", ["s3:/bucket/prefix", "s3:bucket", "s3://", "s3:///prefix", "gs:/bucket"])
def test_a_url_that_would_be_a_folder_or_has_no_bucket_is_refused(url):
    with pytest.raises(StorageUnusable, match="://bucket/prefix") as refused:
        FsspecObjects(url)
    assert url in refused.value.message


def test_folders_are_taken_however_they_are_given(tmp_path):
    for url in (str(tmp_path / "a"), f"file://{tmp_path}/b", "relative/folder"):
        assert FsspecObjects(url).shown == url


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_options_for_a_folder_are_refused_with_their_names_and_without_their_values(tmp_path, form):
    with pytest.raises(StorageUnusable, match="is a folder; its options key, secret have no effect") as refused:
        FsspecObjects(form.format(tmp_path), {"key": "mine", "secret": "hidden-value"})
    assert "hidden-value" not in f"{refused.value}"
