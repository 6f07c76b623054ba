"""tests/support/pages.py tells claims of a page from its examples."""

from __future__ import annotations

import pytest

from tests.support import pages

PAGE = """\
```python
# a.py
x = 1
```

```
not run
```

**Now it rains.** Then:

```sh
$ look --at t1
epoch 3: 2 workers
t1  a  running   2   2  1:3   40  1m02s
$ leave
```
"""


def test_files_commands_and_events_in_order() -> None:
    assert pages.files(PAGE) == {"a.py": "# a.py\nx = 1\n"}
    found = pages.commands(PAGE)
    assert [one.text for one in found] == ["Now it rains.", "look --at t1", "leave"]
    assert [one.is_event for one in found] == [True, False, False]


@pytest.mark.parametrize(
    ("output", "is_seen"),
    [
        ("begins\nepoch 17: 2 workers\nmore\nt1 a running 2 2 1:3 9 7s", True),
        ("epoch 17: 3 workers\nt1 a running 2 2 1:3 9 7s", False),
        ("epoch 17: 2 workers\nt1 a running 2 3 1:3 9 7s", False),
        ("epoch 17: 2 workers\nt2 a running 2 2 1:3 9 7s", False),
        ("t1 a running 2 2 1:3 9 7s\nepoch 17: 2 workers", False),
    ],
)
def test_figures_may_differ_but_sizes_may_not(output: str, *, is_seen: bool) -> None:
    _, look, _ = pages.commands(PAGE)
    assert look.is_seen_in(output) is is_seen


def test_a_block_that_is_not_run() -> None:
    page = PAGE + "\n<!-- not run: it rains -->\n```sh\n$ wait\nlong\n```\n\n```\nplain\n```\n"
    *others, last = pages.commands(page)
    assert (last.text, last.shown, last.not_run) == ("wait", ("long",), "it rains")
    assert not any(one.not_run for one in others)
    assert pages.unmarked(page) == ("not run", "plain")
