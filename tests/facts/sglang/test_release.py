from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts.dialects.sglang import release
from kvfence.facts.dialects.sglang.arguments import read_dump
from kvfence.knowledge.releases import Version, VersionRange, sglang_releases
from kvfence.knowledge.tables import read_rows
from tests.facts.conftest import REAL

EVERY = sglang_releases()


def is_mapping(version: Version) -> bool:
    return version >= Version.parse("0.5.19")


def fields_of(version: Version) -> list[str]:
    return [name for name, (lo, hi) in release._fields().items() if lo <= version <= hi]


@pytest.mark.parametrize("version", EVERY, ids=str)
def test_whole_dump_of_a_release_allows_that_release(version: Version) -> None:
    found = release.from_dump(fields_of(version), complete=True, mapping=is_mapping(version))
    assert found is not None
    assert version in found.known()
    assert len(found.known()) <= 4


@given(st.sampled_from(EVERY), st.data())
def test_excerpt_allows_at_least_what_the_whole_dump_does(version: Version, data: st.DataObject) -> None:
    fields = fields_of(version)
    some = data.draw(st.lists(st.sampled_from(fields), min_size=1, unique=True))
    whole = release.from_dump(fields, complete=True, mapping=is_mapping(version))
    part = release.from_dump(some, complete=False, mapping=is_mapping(version))
    assert whole is not None
    assert part is not None
    assert part & whole == whole


@pytest.mark.parametrize("folder", ["0.5.19", "0.5.21", "0.5.22", "0.5.23"])
def test_dumps_of_real_servers_name_their_release(folder: str) -> None:
    for path in (REAL / folder).glob("*.log"):
        text = next(line for line in path.read_text().splitlines() if "server_args={" in line)
        dump = read_dump(text.partition("server_args=")[2])
        assert dump is not None
        assert dump.complete
        found = release.from_dump(dump.fields, complete=True, mapping=True)
        assert found is not None
        assert str(found.lo) <= folder <= str(found.hi)


@pytest.mark.parametrize("version", EVERY[-3:], ids=str)
def test_dump_without_its_keys_still_names_its_release(version: Version) -> None:
    kept = [name for name in fields_of(version) if name not in release.SCRUBBED]
    found = release.from_dump(kept, complete=True, mapping=is_mapping(version))
    assert found == release.from_dump(fields_of(version), complete=True, mapping=is_mapping(version))


def test_field_of_no_known_release_says_nothing() -> None:
    assert release.from_dump(["model_path", "brand_new_field"], complete=False, mapping=True) is None


def test_no_known_field_says_nothing() -> None:
    assert release.from_dump([], complete=True, mapping=True) is None
    assert release.from_dump(["_private"], complete=True, mapping=True) is None


def test_private_fields_do_not_count() -> None:
    one = release.from_dump(["model_path"], complete=False, mapping=True)
    other = release.from_dump(["model_path", "_anything"], complete=False, mapping=True)
    assert one == other


def test_form_of_the_dump_parts_old_from_new() -> None:
    old = release.from_dump(["model_path"], complete=False, mapping=False)
    new = release.from_dump(["model_path"], complete=False, mapping=True)
    assert old is not None
    assert new is not None
    assert old.hi < new.lo
    assert str(new.lo) == "0.5.19"


def test_fields_of_releases_apart_fit_none() -> None:
    last = {name: hi for name, (_, hi) in release._fields().items()}
    first = {name: lo for name, (lo, _) in release._fields().items()}
    gone = min(last, key=lambda name: last[name])
    came = next(name for name in first if first[name] > last[gone] and str(first[name]) < "0.5.19")
    assert release.from_dump([gone, came], complete=False, mapping=False) is None


def test_every_wording_bounds_the_release() -> None:
    for row in read_rows("sglang/log_wording.tsv"):
        assert isinstance(release.from_wording(row["wording"]), VersionRange)


def test_wording_that_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        release.from_wording("no such wording")
