"""Which installation serves which service, as far as this operator has seen. `installations` has the rules."""

from roundhouse_operator.cluster import Obj
from roundhouse_operator.installations import Claim, judge


class Claims:
    """Remembers who holds what, because one installation should have a whole namespace."""

    def __init__(self, installation: str) -> None:
        self._ours = installation
        self._holders: dict[str, str] = {}

    def see(self, key: str, service: Obj) -> bool:
        """Note who holds it. False when another installation does."""
        holder = (service.get("status") or {}).get("installation")
        if holder:
            self._holders[key] = holder
        return holder in (None, self._ours)

    def drop(self, key: str) -> None:
        self._holders.pop(key, None)

    def judge(self, key: str, service: Obj, now: float) -> Claim:
        self.see(key, service)
        namespace = key.split("/", 1)[0]
        others = (
            holder
            for other, holder in self._holders.items()
            if other != key and holder != self._ours and other.startswith(f"{namespace}/")
        )
        claim = judge(service.get("status") or {}, self._ours, next(others, None), now)
        if claim.serves:
            self._holders[key] = self._ours
        return claim
