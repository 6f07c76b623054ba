"""Who may see the page."""

from __future__ import annotations

import re

import pytest

from bftrainer.api.page.door import Door, PageAddress

NAME = "bft-1.localhost"


def door_at(public_url: str = "", port: int = 4000) -> tuple[Door, list[str]]:
    links = list[str]()
    door = Door(
        PageAddress(port=port, public_url=public_url, hosts=("n1", "N1.site"), name=NAME),
        links.append,
    )
    door.offer()
    return door, links


def token_of(link: str) -> str:
    return link.partition("#")[2]


def test_a_link_is_good_for_one_browser() -> None:
    door, links = door_at()
    found = door.enter(token_of(links[0]))
    assert found
    cookie, key = found
    assert door.knows({door.cookie_name: cookie}, key)
    assert door.enter(token_of(links[0])) is None
    assert len(links) == 2  # the next one was said
    other = door.enter(token_of(links[1]))
    assert other
    assert door.knows({door.cookie_name: cookie}, key)
    assert not door.knows({door.cookie_name: cookie}, other[1])
    assert not door.knows({door.cookie_name: cookie}, "")  # as other ports of the host see it
    assert not door.knows({}, key)


def test_a_portal_knows_the_first_link() -> None:
    door, links = door_at()
    door.offer("t" * 32)
    assert token_of(links[-1]) == "t" * 32
    assert door.enter("t" * 32)
    assert door.enter("t" * 32) is None


@pytest.mark.parametrize("token", ["", "x", "é", "\ufffd"])
def test_a_wrong_token_opens_nothing(token: str) -> None:
    door, links = door_at()
    assert door.enter(token) is None
    assert not door.knows({door.cookie_name: token}, token)
    assert len(links) == 1


def test_links_are_of_the_place_that_browsers_see() -> None:
    assert door_at()[1][0].startswith("http://bft-1.localhost:4000/#")
    door, links = door_at("https://ood.site.edu/rnode/n1/4000")
    assert links[0].startswith("https://ood.site.edu/rnode/n1/4000/#")
    header = door.set_cookie("c")
    assert "; Path=/rnode/n1/4000/; HttpOnly; SameSite=Strict; Secure" in header


LINK = {"site": "cross-site", "mode": "navigate", "dest": "document"}
HOSTS = {
    f"{NAME}:4000": True,
    f"{NAME}:9999": True,  # the user's end of a tunnel
    NAME: False,  # at port 80, where no user listens
    "127.0.0.1:4000": False,  # an origin that others had before
    "localhost:4000": False,
    "[::1]:4000": False,
    "bft-2.localhost:4000": False,
    f"evil.{NAME}:4000": False,
    f"{NAME}.evil.example:4000": False,
    "evil.example:4000": False,  # its name leads here now
    "": False,
}


def test_no_two_pages_have_one_name() -> None:
    names = {PageAddress(port=4000).name for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"bft-[0-9a-f]{16}\.localhost", name) for name in names)


@pytest.mark.parametrize(("host", "is_taken"), HOSTS.items())
def test_only_our_names_are_answered(host: str, *, is_taken: bool) -> None:
    assert (door_at()[0].why_refused({"host": host}) == "") is is_taken


def test_behind_a_proxy_only_its_name_is_answered() -> None:
    door, _ = door_at("https://ood.site.edu/rnode/n1/4000")
    public = {"origin": "https://ood.site.edu"}
    for host in (
        "ood.site.edu",
        "n1.site:4000",
        "n1:4000",
        "127.0.0.1:4000",
        "localhost:9999",
        "[::1]:4000",
    ):  # as the proxy sends it
        assert door.why_refused({"host": host, **public}) == ""
    assert door.why_refused({"host": "n1.site:4000", "origin": "http://n1.site:4000"})
    assert door.why_refused({"host": "evil.example", **public})
    assert door.why_refused({"host": f"{NAME}:4000", **public})
    assert door_at()[0].why_refused({"host": "n1.site:4000"})


@pytest.mark.parametrize(
    "more",
    [
        {"origin": "https://evil.example"},
        {"origin": f"http://{NAME}:4001"},  # another user's page on this host
        {"origin": "http://127.0.0.1:4000"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"origin": "https://evil.example", **{f"sec-fetch-{k}": v for k, v in LINK.items()}},
    ],
)
def test_scripts_of_other_sites_are_refused(more: dict[str, str]) -> None:
    assert door_at()[0].why_refused({"host": f"{NAME}:4000", **more})


def test_a_link_on_a_page_of_another_site_opens_the_page() -> None:
    more = {f"sec-fetch-{name}": text for name, text in LINK.items()}
    assert door_at()[0].why_refused({"host": f"{NAME}:4000", **more}) == ""


def test_our_own_script_is_not_refused() -> None:
    more = {"origin": f"http://{NAME}:4000", "sec-fetch-site": "same-origin"}
    assert door_at()[0].why_refused({"host": f"{NAME}:4000", **more}) == ""
