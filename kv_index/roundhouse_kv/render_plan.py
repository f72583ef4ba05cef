"""Chat templates without running them: what a template makes of a *shape* of chat is learned once, then filled in.

Most templates put a message's content down as it is (or trimmed) and decide by roles and positions only. So the
template is run once per shape (the sequence of roles) with a `Hole` in place of each content: a string that refuses
every question about itself. If the template asks (compares, cuts, measures, filters, formats it), there is no plan for
that shape and jinja renders it each time. If it does not, its output is literals and holes, whatever the contents are.

Operations that would look through a string without asking it are taken away first: only node types known here may
occur; ``in``, ``%`` and ``~``, and every filter, test and call that is not known to be harmless are wrapped, and give
up when a hole is among their arguments. A template that reads the time is asked again when its answer changes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, cast

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from roundhouse_kv.plan import EDGE, Plan, Plans, read_chat

SHAPES_KEPT: Final = 512

_NODES: Final = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List,
    nodes.Dict, nodes.Pair, nodes.Keyword, nodes.If, nodes.For, nodes.With, nodes.Assign, nodes.Getattr, nodes.Getitem,
    nodes.Slice, nodes.Filter, nodes.Test, nodes.Call, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not,
    nodes.Neg, nodes.Pos, nodes.Add, nodes.Sub, nodes.Mul, nodes.Mod, nodes.Concat, nodes.CondExpr, nodes.Continue,
    nodes.Break, nodes.Scope,
)  # fmt: skip
_FILTERS: Final = (
    "default",
    "d",
    "length",
    "count",
    "first",
    "last",
    "list",
    "string",
    "trim",
    "selectattr",
    "rejectattr",
)
_TESTS: Final = (
    "defined", "undefined", "none", "string", "mapping", "number", "integer", "float", "boolean", "true", "false",
    "sameas", "equalto", "eq", "==", "ne", "!=", "iterable", "sequence",
)  # fmt: skip
_RANDOM: Final = frozenset({"random", "lipsum"})

_Function = Callable[..., Any]
EnvironmentMaker = Callable[[], ImmutableSandboxedEnvironment]


class _Doubt(Exception):
    """The output may depend on a content."""


class Hole(str):
    """Where contents will stand. It can be put down and joined to other text; anything else raises."""

    __slots__ = ()

    def __add__(self, other: str) -> "Hole":
        return Hole(str.__add__(self, other))

    def __radd__(self, other: str) -> "Hole":
        return Hole(str.__add__(other, self))

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True  # a shape has no blank contents


class _Content(Hole):
    """One whole content, which may be trimmed."""

    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> Hole:
        return self._trimmed("strip", chars)

    def lstrip(self, chars: str | None = None, /) -> Hole:
        return self._trimmed("lstrip", chars)

    def rstrip(self, chars: str | None = None, /) -> Hole:
        return self._trimmed("rstrip", chars)

    def _trimmed(self, how: str, chars: str | None) -> Hole:
        if chars is not None:
            raise _Doubt
        return Hole(str.__add__(str.__getitem__(self, slice(-1)), how + EDGE))


def _refuse(*_: object, **__: object) -> Any:
    raise _Doubt


_INHERITED: Final = frozenset(
    {"__class__", "__delattr__", "__dir__", "__doc__", "__getattribute__", "__init__", "__init_subclass__", "__new__"}
    | {"__setattr__", "__subclasshook__", "__module__", "__slots__"}
)
for _name in set(dir(str)) | {"__rmod__", "__rmul__"}:
    if _name not in _INHERITED and _name not in vars(Hole):
        setattr(Hole, _name, _refuse)


class RenderPlans:
    """Plans of one template, made when a shape is first seen. ``listed``: contents are lists of parts."""

    def __init__(
        self,
        source: str,
        make_environment: EnvironmentMaker,
        render: Callable[..., str],
        *,
        variables: Mapping[str, Any],
        listed: bool,
    ) -> None:
        """``render`` is the real template: each plan is tried against it before it is used."""
        self._render = render
        self._variables = variables
        self._listed = listed
        self._times: list[tuple[str, str]] = []
        self.known = Plans()
        self._plans = self.known.by_shape
        self._now: Callable[[str], str] | None = None
        self._template = None
        environment = make_environment()
        if not source or EDGE in source or any(EDGE in str(value) for value in variables.values()):
            return
        try:
            tree = _Wrapped().visit(environment.parse(source))
            self._now = cast(Callable[[str], str], environment.globals["strftime_now"])
            self._template = _guarded(environment, self._tell_time).from_string(tree)
        except (_Doubt, TemplateError, RecursionError):
            return

    def render(self, body: Mapping[str, Any]) -> str | None:
        """The prompt of a chat; None when it has no plan."""
        chat = read_chat(body) if self._template is not None else None
        if chat is None:
            return None
        shape, contents = chat
        plan = self._plans[shape] if shape in self._plans else self._make(shape, contents)
        if plan is None:
            return None
        if plan.times and any(self._now(form) != said for form, said in plan.times):  # type: ignore[misc]
            plan = self._make(shape, contents)
        return plan.fill(contents) if plan is not None else None

    def _make(self, shape: tuple[str, ...], contents: Sequence[str]) -> Plan | None:
        if len(self._plans) >= SHAPES_KEPT:
            self._plans.clear()
        holes = [_Content(f"{EDGE}{index}{EDGE}") for index in range(len(shape))]
        self._times = []
        plan: Plan | None
        try:
            assert self._template is not None
            plan = Plan(self._template.render(**self._arguments(shape, holes)), tuple(self._times))
            if plan.fill(contents) != self._render(**self._arguments(shape, contents)):
                plan = None
        except Exception:  # a doubt, or whatever a template raises: the real one will say it
            plan = None
        self._plans[shape] = plan
        return plan

    def _arguments(self, shape: Sequence[str], contents: Sequence[str]) -> dict[str, Any]:
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if self._listed else text}
            for role, text in zip(shape, contents, strict=True)
        ]
        fixed = {"tools": None, "documents": None, "add_generation_prompt": True}
        return {"messages": messages, **fixed, **self._variables}

    def _tell_time(self, form: str) -> str:
        assert self._now is not None
        said = self._now(form)
        self._times.append((form, said))
        return said


class _Wrapped(NodeTransformer):
    """Operators that look into strings become filters, which can be guarded. Raises `_Doubt` on unknown nodes."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if type(node) not in _NODES or (isinstance(node, nodes.Filter | nodes.Name) and node.name in _RANDOM):
            raise _Doubt
        return super().generic_visit(node, *args, **kwargs)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if not any(operand.op in ("in", "notin") for operand in node.ops):
            return node
        if len(node.ops) != 1:
            raise _Doubt
        found = _filter("%in", node, [node.expr, node.ops[0].expr])
        return found if node.ops[0].op == "in" else nodes.Not(found, lineno=node.lineno)

    def visit_Mod(self, node: nodes.Mod) -> nodes.Node:
        self.generic_visit(node)
        return _filter("%mod", node, [node.left, node.right])

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("%concat", node, node.nodes)


def _filter(name: str, at: nodes.Node, arguments: Sequence[nodes.Expr]) -> nodes.Filter:
    first, *others = arguments
    return nodes.Filter(first, name, others, [], None, None, lineno=at.lineno)


class _GuardedEnvironment(ImmutableSandboxedEnvironment):
    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        if called is not Namespace:
            _check_clean(*args, *kwargs.values())
        return super().call(context, called, *args, **kwargs)


def _guarded(environment: ImmutableSandboxedEnvironment, tell_time: Callable[[str], str]) -> _GuardedEnvironment:
    """A copy in which nothing looks into a `Hole` unseen."""
    guarded = _GuardedEnvironment(trim_blocks=environment.trim_blocks, lstrip_blocks=environment.lstrip_blocks)
    for name, function in environment.filters.items():
        guarded.filters[name] = function if name in _FILTERS else _guard(cast(_Function, function))
    for name, function in environment.tests.items():
        guarded.tests[name] = function if name in _TESTS else _guard(cast(_Function, function))
    guarded.filters |= {"%in": _in, "%mod": _guard(_modulo), "%concat": _concat}
    guarded.globals.update(environment.globals)
    guarded.globals["strftime_now"] = tell_time
    return guarded


def _guard(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_clean(*args, *kwargs.values())
        return function(*args, **kwargs)

    return checked


def _check_clean(*values: Any) -> None:
    """Raises `_Doubt` unless there is no hole in it for certain."""
    for value in values:
        kind = type(value)
        if kind is dict:
            _check_clean(*value.keys(), *value.values())
        elif kind in (list, tuple):
            _check_clean(*value)
        elif kind is str:
            if EDGE in value:
                raise _Doubt
        elif value is not None and kind not in (bool, int, float):
            raise _Doubt


def _in(value: Any, container: Any) -> bool:
    if isinstance(value, Hole) and isinstance(container, str):
        raise _Doubt
    return value in container


def _modulo(left: Any, right: Any) -> Any:
    return left % right


def _concat(*values: Any) -> str:
    text = ""
    for value in values:
        text = text + (value if isinstance(value, str) else str(value))
    return text
