"""Who serves which name."""

from roundhouse_operator.cluster import Obj
from roundhouse_operator.served_names import ServedNames, claimed_names


def made(name: str, created: int, names: list[str] | None = None, uid: str = "") -> Obj:
    spec: Obj = {} if names is None else {"servedNames": names}
    meta = {"name": name, "namespace": "ns", "uid": uid or name, "creationTimestamp": f"2026-01-01T00:00:{created:02}Z"}
    return {"metadata": meta, "spec": spec}


def test_the_oldest_has_the_name() -> None:
    names = ServedNames()
    names.claim("ns/b", made("b", 2, ["m"]))
    assert names.lost("ns/b") == {}
    assert names.claim("ns/a", made("a", 1, ["m"])) == {"ns/b"}
    assert names.lost("ns/b") == {"m": "ns/a"}
    assert names.lost("ns/a") == {}


def test_of_two_of_the_same_second_one_has_the_name() -> None:
    names = ServedNames()
    names.claim("ns/a", made("a", 1, ["m"], uid="2"))
    names.claim("ns/b", made("b", 1, ["m"], uid="1"))
    assert (names.lost("ns/a"), names.lost("ns/b")) == ({"m": "ns/b"}, {})


def test_a_dropped_name_goes_to_the_next() -> None:
    names = ServedNames()
    names.claim("ns/a", made("a", 1, ["m"]))
    names.claim("ns/b", made("b", 2, ["m"]))
    assert names.drop("ns/a") == {"ns/b"}
    assert names.lost("ns/b") == {}
    assert names.drop("ns/a") == set()
    assert names.services() == {"ns/b"}


def test_giving_up_a_name_tells_those_who_wanted_it() -> None:
    names = ServedNames()
    names.claim("ns/a", made("a", 1, ["m", "x"]))
    names.claim("ns/b", made("b", 2, ["m"]))
    assert names.claim("ns/a", made("a", 1, ["x"])) == {"ns/b"}
    assert names.lost("ns/b") == {}
    assert names.claim("ns/a", made("a", 1, ["x"])) == set()


def test_nobody_takes_the_full_name_of_another() -> None:
    names = ServedNames()
    names.claim("ns/thief", made("thief", 1, ["ns/victim"]))
    assert names.lost("ns/thief") == {}
    assert names.claim("ns/victim", made("victim", 2)) == {"ns/thief"}
    assert names.lost("ns/thief") == {"ns/victim": "ns/victim"}
    assert names.lost("ns/victim") == {}


def test_without_served_names_the_object_is_served_under_its_own() -> None:
    assert claimed_names(made("a", 1)) == ("a",)
    assert claimed_names(made("a", 1, [])) == ("a",)
    assert claimed_names({"metadata": {"name": "a"}, "spec": {"servedNames": [1]}}) == ("a",)
    assert claimed_names(made("a", 1, ["x", "x", "y"])) == ("x", "y")


def test_an_unknown_service_has_lost_nothing() -> None:
    assert ServedNames().lost("ns/a") == {}
