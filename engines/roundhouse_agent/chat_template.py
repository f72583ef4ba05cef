"""What a chat template expects of message content, read from its syntax tree.

vLLM hands content to a template as one string, unless the template itself loops over ``message.content``: then as a
list of parts. The same question has to be answered here, or the rendered prompts differ.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

Rule = Callable[[nodes.Node, set[str]], bool]

_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]
)


def content_format(template: str) -> Literal["string", "openai"]:
    """``string`` also for a template that cannot be parsed: rendering it will say so."""
    try:
        tree = _ENVIRONMENT.parse(template)
    except TemplateError:
        return "string"
    lists = _aliases(tree, {"messages"}, _is_list_of)
    messages = _message_names(tree, lists)
    contents = _aliases(tree, set(), lambda node, _: _is_content(node, messages))
    for loop in tree.find_all(nodes.For):
        if _is_content(loop.iter, messages) or (isinstance(loop.iter, nodes.Name) and loop.iter.name in contents):
            return "openai"
    return "string"


def _is_list_of(node: nodes.Node, names: set[str]) -> bool:
    """``messages``, ``messages[1:]``, ``messages | reverse`` and the like."""
    while isinstance(node, nodes.Filter | nodes.Getitem | nodes.Test) and node.node is not None:
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.name in names


def _message_names(tree: nodes.Template, lists: set[str]) -> set[str]:
    """Names that stand for one message: loop variables over messages, and ``set x = messages[i]``."""
    names = {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _is_list_of(loop.iter, lists)
    }
    for name, value in _assignments(tree):
        if isinstance(value, nodes.Getitem) and not isinstance(value.arg, nodes.Slice) and _is_list_of(value.node, lists):
            names.add(name)
    return names


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    """``message.content`` or ``message['content']``, with or without filters."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content" and _is_message(node.node, messages)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value == "content" and _is_message(node.node, messages)
    return False


def _is_message(node: nodes.Node, messages: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in messages


def _aliases(tree: nodes.Template, names: set[str], is_one: Rule) -> set[str]:
    """``names`` and every name that is assigned from one, however often."""
    found = set(names)
    while True:
        more = {name for name, value in _assignments(tree) if _any_branch(value, found, is_one)} - found
        if not more:
            return found
        found |= more


def _any_branch(value: nodes.Node, names: set[str], is_one: Rule) -> bool:
    if isinstance(value, nodes.CondExpr):
        branches = [value.expr1, *([value.expr2] if value.expr2 is not None else [])]
        return any(_any_branch(branch, names, is_one) for branch in branches)
    return is_one(value, names) or (isinstance(value, nodes.Name) and value.name in names)


def _assignments(tree: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name):
            yield assign.target.name, assign.node
