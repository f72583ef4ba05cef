from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_local.api.merge import Merged, Owner, Owners, apply, owned_by_update
from roundhouse_operator.cluster import Conflict, Obj

SCHEMA = {
    "properties": {
        "spec": {
            "properties": {
                "items": {
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"properties": {"name": {}, "value": {}, "more": {}}},
                },
                "tags": {"x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "whole": {"x-kubernetes-map-type": "atomic"},
                "any": {"x-kubernetes-preserve-unknown-fields": True},
            }
        }
    }
}


def spec(**fields: Any) -> Obj:
    return {"metadata": {"name": "a"}, "spec": fields}


def applied(live: Merged | None, wanted: Obj, manager: str = "me", *, force: bool = False) -> Merged:
    return apply(live.obj if live else None, live.owners if live else {}, wanted, SCHEMA, manager, force=force)


def test_field_that_is_no_longer_applied_is_removed() -> None:
    first = applied(None, spec(a=1, b=2))
    assert applied(first, spec(a=1)).obj["spec"] == {"a": 1}


def test_container_emptied_by_a_removal_goes_too() -> None:
    first = applied(None, spec(a={"b": {"c": 1}}, d=1))
    assert applied(first, spec(d=1)).obj["spec"] == {"d": 1}


def test_field_that_another_manager_applies_too_stays() -> None:
    both = applied(applied(None, spec(a=1, b=2)), spec(b=2), "other")
    assert applied(both, spec(a=1)).obj["spec"] == {"a": 1, "b": 2}


def test_other_managers_fields_stay() -> None:
    both = applied(applied(None, spec(a=1)), spec(b=2), "other")
    assert applied(both, spec(a=3)).obj["spec"] == {"a": 3, "b": 2}


def test_changing_another_managers_field_is_a_conflict_that_names_it() -> None:
    first = applied(None, spec(a=1), "other")
    with pytest.raises(Conflict, match=r"1 conflict: \.spec\.a \(owned by other\)"):
        applied(first, spec(a=2))


def test_same_value_as_another_managers_is_shared() -> None:
    both = applied(applied(None, spec(a=1), "other"), spec(a=1))
    assert both.owners.keys() == {Owner("me"), Owner("other")}


def test_replacing_another_managers_scalar_by_a_map_is_a_conflict() -> None:
    first = applied(None, spec(a=1), "other")
    with pytest.raises(Conflict):
        applied(first, spec(a={"b": 1}))


def test_replacing_another_managers_map_by_a_scalar_is_a_conflict() -> None:
    first = applied(None, spec(a={"b": 1}), "other")
    with pytest.raises(Conflict):
        applied(first, spec(a=1))


def test_force_takes_the_field_over() -> None:
    taken = applied(applied(None, spec(a=1, b=1), "other"), spec(a=2), force=True)
    assert taken.obj["spec"] == {"a": 2, "b": 1}
    assert taken.owners[Owner("other")] == {("spec", "b")}


def test_creator_is_another_owner_than_the_same_manager_applying() -> None:
    created = spec(a=1)
    live = Merged(created, owned_by_update(created, SCHEMA, "me"))
    with pytest.raises(Conflict):
        applied(live, spec(a=2))
    assert applied(live, spec(b=2)).obj["spec"] == {"a": 1, "b": 2}


def test_list_is_one_value_unless_the_schema_says_otherwise() -> None:
    first = applied(None, spec(any=[1, 2]))
    assert applied(first, spec(any=[3])).obj["spec"] == {"any": [3]}
    with pytest.raises(Conflict):
        applied(first, spec(any=[]), "other")


def test_map_list_is_merged_by_key() -> None:
    first = applied(None, spec(items=[{"name": "a", "value": 1}, {"name": "b", "value": 1}]))
    both = applied(first, spec(items=[{"name": "b", "more": 1}, {"name": "c"}]), "other")
    assert both.obj["spec"]["items"] == [
        {"name": "a", "value": 1},
        {"name": "b", "value": 1, "more": 1},
        {"name": "c"},
    ]


def test_item_that_is_no_longer_applied_is_removed_whole() -> None:
    first = applied(None, spec(items=[{"name": "a", "value": 1}, {"name": "b", "value": {"x": 1}}]))
    assert applied(first, spec(items=[{"name": "a", "value": 1}])).obj["spec"]["items"] == [{"name": "a", "value": 1}]


def test_item_that_another_manager_holds_loses_only_our_fields() -> None:
    first = applied(None, spec(items=[{"name": "a", "value": 1}]))
    both = applied(first, spec(items=[{"name": "a", "more": 2}]), "other")
    assert applied(both, spec(b=1)).obj["spec"] == {"items": [{"name": "a", "more": 2}], "b": 1}


def test_set_is_merged_by_value() -> None:
    both = applied(applied(None, spec(tags=["x", "y"])), spec(tags=["y", "z"]), "other")
    assert both.obj["spec"]["tags"] == ["x", "y", "z"]
    assert applied(both, spec(tags=["x"])).obj["spec"]["tags"] == ["x", "y", "z"]


def test_atomic_map_is_replaced_whole() -> None:
    first = applied(None, spec(whole={"a": 1}))
    assert applied(first, spec(whole={"b": 1})).obj["spec"] == {"whole": {"b": 1}}


def test_owner_references_are_merged_by_uid() -> None:
    first = applied(None, {"metadata": {"name": "a", "ownerReferences": [{"uid": "1", "name": "x"}]}})
    both = applied(first, {"metadata": {"name": "a", "ownerReferences": [{"uid": "2", "name": "y"}]}}, "other")
    assert [o["uid"] for o in both.obj["metadata"]["ownerReferences"]] == ["1", "2"]


SCALARS = st.integers(0, 2)
TREES = st.recursive(
    SCALARS, lambda children: st.dictionaries(st.sampled_from("ab"), children, min_size=1), max_leaves=4
)
ITEMS = st.dictionaries(st.sampled_from("xyz"), SCALARS).map(
    lambda d: [{"name": name, "value": value} for name, value in d.items()]
)
SPECS = st.fixed_dictionaries(
    {}, optional={"any": TREES, "items": ITEMS, "tags": st.lists(st.sampled_from("pq"), unique=True), "n": SCALARS}
)


@given(st.lists(st.tuples(st.sampled_from(["me", "other"]), SPECS), max_size=8))
def test_what_was_applied_is_there_and_nothing_else(steps: list[tuple[str, Obj]]) -> None:
    """After each accepted apply: applying again changes nothing, and every leaf has an owner who last applied it."""
    state: Merged | None = None
    last: dict[str, Obj] = {}
    for manager, fields in steps:
        wanted = spec(**fields)
        try:
            after = applied(state, wanted, manager)
        except Conflict:
            continue
        last[manager] = wanted
        assert applied(after, wanted, manager) == after
        assert _leaf_values(after.obj) == {leaf for w in last.values() for leaf in _leaf_values(w)}
        state = after


@given(SPECS, SPECS)
def test_single_manager_always_gets_what_it_applies(before: Obj, after: Obj) -> None:
    result = applied(applied(None, spec(**before)), spec(**after))
    assert _leaf_values(result.obj) == _leaf_values(spec(**after))


@given(SPECS, SPECS)
def test_forced_apply_never_conflicts_and_holds(before: Obj, after: Obj) -> None:
    result = applied(applied(None, spec(**before), "other"), spec(**after), force=True)
    again: Owners = applied(result, spec(**after)).owners
    assert again == result.owners


def _leaf_values(value: Any, path: str = "") -> set[tuple[str, Any]]:
    """Scalars with their places; items and set members by what they are."""
    if isinstance(value, dict):
        here = f"{path}/{value['name']}" if path.endswith("items") else path
        return {leaf for name, item in value.items() for leaf in _leaf_values(item, f"{here}.{name}")}
    if isinstance(value, list):
        return {leaf for item in value for leaf in _leaf_values(item, path)}
    return {(path, value)}
