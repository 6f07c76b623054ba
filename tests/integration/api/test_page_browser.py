"""The page in a real Chromium."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.server import page_of
from bftrainer.api.page.source import LiveSource
from bftrainer.daemon.harm.ledger import HandOver, HarmRecords, How
from bftrainer.daemon.uses import UsesOfNodes
from bftrainer.model.reports import NodeTime, Whose, day_of
from bftrainer.model.study import Report, Seen, StudyCount, StudyView, TrialTag, TrialView
from bftrainer.model.trainer import (
    GpuLoad,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from tests.support.browser import complaints, driver, resize
from tests.support.memory_service import MemoryService, NoTrials, prepare_home, serving, socket_of
from tests.support.parted_nodes import lending_node, part_pilot, plan_of, seen_with
from tests.support.snapshots import T0
from tests.support.timelines import PLAN, input_of, trained
from tests.support.waiting import wait_for

__all__ = ["driver"]

LOG = ("t2.1 on n1", "epoch 1", "CUDA out of memory.")
HOSTILE = '<img src=x onerror="document.title=1">"\'&\u202e</td><script>alert(1)</script>'
HAND_OVER = HandOver(
    job_id="7",
    n_nodes=1,
    node="n1",
    pilot_id="p000001",
    how=How.GIVEN_BACK,
    asked_s=T0,
    freed_s=T0 + 4.0,
    precision_s=0.25,
    asked_for="7",
)


def record(trainer_id: str, name: str = "net", **more: Any) -> TrainerRecord:
    spec = TrainerSpec(name=name, user="ada", script="/s.py", n_min=1, n_max=4, samples=1000)
    found = TrainerRecord(
        trainer_id=trainer_id, spec=spec, state=TrainerState.RUNNING, submitted_s=T0
    )
    return replaced(found, **more)


@dataclass(slots=True, kw_only=True)
class Page:
    """A page in a browser, and what it is of."""

    driver: Any
    service: MemoryService
    links: list[str]

    def open(self) -> None:
        self.driver.get(self.links[-1])
        self.says("Live")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def text(self, selector: str) -> str:
        return str(self.run(f"return document.querySelector('{selector}')?.innerText || ''"))

    def says(self, text: str, selector: str = "body") -> None:
        try:
            wait_for(lambda: text in self.text(selector), timeout_s=60)
        except AssertionError:
            raise AssertionError(f"{selector} says {self.text(selector)!r}, not {text!r}") from None

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector('{selector}').click()")


@pytest.fixture
def page(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    memory, links = MemoryService(prepare_home(tmp_path, monkeypatch)), list[str]()
    memory.records["t1"] = record("t1")
    memory.saw(trained(time.time(), n1="", n2="t1"), PLAN)
    with (
        serving(memory, socket_of()),
        page_of(LiveSource(Client(socket_of()), "a site", lambda _: LOG), links.append),
    ):
        resize(driver, 1280, 900)
        yield Page(driver=driver, service=memory, links=links)
        driver.get("about:blank")  # closes its connection
        complaints(driver)


def test_it_shows_and_explains_and_complains_of_nothing(page: Page) -> None:
    page.open()
    page.says("2 held, 1 requested, 1 idle, 4 in all", "#head")
    page.says("squeue did not answer.", "#notes")
    page.says("net", "#trainers")
    page.click('[data-trainer="t1"]')
    page.says("A third would gain less than it costs.", "#explain")
    assert page.run("return document.title") == "a site"
    assert complaints(page.driver) == []


def test_what_is_new_comes_by_itself(page: Page) -> None:
    page.open()
    page.run("const c = document.getElementById('picture'); c.focus()")
    for _ in range(2):
        page.run(
            "document.getElementById('picture').dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'ArrowUp'}))"
        )
    page.says("n1,", "#under")
    page.says("idle", "#under")
    gpus = GpuLoad(gpus=2, use_percent=50.0)
    page.service.records["t1"] = record(
        "t1", progress=TrainerProgress(samples=700, samples_per_s=10.0, gpu_use=gpus)
    )
    page.service.saw(trained(time.time(), n1="t1", n2="t1"), PLAN)
    page.says("70.0%", "#trainers")
    page.says("training t1 net", "#under")
    page.says("; GPU use 50% on 2 GPUs", "#under")


def test_a_node_that_lends_gpus_one_by_one_is_drawn_and_told_in_parts(page: Page) -> None:
    trains, starts = part_pilot("n9/0"), part_pilot("n9/1", is_held=False)
    seen = seen_with([lending_node("n9", 2)], trains)
    given = input_of(seen, trains, starts, at_s=time.time() - 60, training={"n9/0": "t1"})
    page.service.saw(given, plan_of({"n9/0": "t1", "n9/1": "t2"}, reserve=("n9/2",)))
    page.service.saw(replaced(given, now_s=time.time()), plan_of({"n9/0": "t1", "n9/1": "t2"}))
    page.open()
    page.says("a row that is divided: a node of which GPUs are lent one by one", "#legend")
    page.run("const box = document.getElementById('filter'); box.value = 'n9'")
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
    canvas, key = "document.getElementById('picture')", "new KeyboardEvent('keydown', {key: '%s'})"
    for _ in range(2):
        page.run(f"{canvas}.dispatchEvent({key % 'ArrowUp'})")
    page.says("n9,", "#under")
    page.says("4 GPUs: 1 training t1 net, 1 starting t2, 1 idle, 1 ordinary; from", "#under")
    drawn = page.run(
        f"const canvas = {canvas}, ratio = canvas.height / canvas.clientHeight;"
        "return [...canvas.getContext('2d')"
        ".getImageData(0.77 * canvas.width, 72 * ratio, 1, 40 * ratio).data].join()"
    ).split(",")
    assert len({tuple(drawn[k : k + 4]) for k in range(0, len(drawn), 4)}) >= 4  # of a column
    page.run(f"{canvas}.dispatchEvent({key % 'Enter'})")
    page.says("A third would gain less than it costs.", "#explain")  # of t1, the first of it
    assert complaints(page.driver) == []


def test_names_are_never_parsed(page: Page) -> None:
    page.service.records["t2"] = record("t2", name=HOSTILE, reason=HOSTILE)
    page.service.failures = (HOSTILE,)
    page.service.saw(trained(time.time(), n1="t2", n2="t1", **{HOSTILE: ""}), PLAN)
    page.open()
    page.says("<img", "#trainers")
    page.says("<script>alert(1)</script>", "#notes")
    assert page.run("return document.title") == "a site"
    assert page.run("return document.querySelectorAll('img, td script, #notes script').length") == 0
    assert complaints(page.driver) == []


@pytest.mark.long
def test_a_second_browser_needs_the_next_link(page: Page) -> None:
    page.open()
    assert len(page.links) == 2
    page.driver.get("about:blank")
    page.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    page.driver.get(page.links[0])
    page.says("was used already", "#link")
    page.driver.get("about:blank")
    page.open()  # with the newest one


def test_a_daemon_that_restarts_is_told_and_found_again(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, links = MemoryService(prepare_home(tmp_path, monkeypatch)), list[str]()
    memory.records["t1"] = record("t1")
    memory.saw(trained(time.time(), n1="t1"), PLAN)
    page = Page(driver=driver, service=memory, links=links)
    with page_of(LiveSource(Client(socket_of()), "a site"), links.append):
        with serving(memory, socket_of()):
            page.open()
        page.says("BFT-1101", "#link")
        del memory.records["t1"]
        memory.records["t2"] = record("t2")
        with serving(memory, socket_of()):
            page.says("Live", "#link")
            page.says("t2", "#trainers")
            assert "t1" not in page.text("#trainers")
    page.says("The connection is lost", "#link")
    driver.get("about:blank")
    complaints(driver)


class TwoTrials(NoTrials):
    """Of which the second is better and the third has not come far."""

    def studies(self, user: str) -> tuple[StudyCount, ...]:  # noqa: ARG002
        return (StudyCount(study="digits-1", trials=3, active=3, nodes=3),)

    def study(self, user: str, study: str, seen: Seen | None = None) -> StudyView:
        values = ((0.5, 20), (0.25, 20), (0.125, 10))
        trials = tuple(trial(number, *told) for number, told in enumerate(values))
        return replaced(super().study(user, study, seen), trials=trials)


def trial(number: int, value: float, samples: int) -> TrialView:
    return TrialView(
        trainer_id=f"t{number}",
        tag=TrialTag(study="digits-1", number=number, maximizes=False),
        state="running",
        budget=9,
        waits_at_rung=False,
        is_held=False,
        nodes=1,
        samples=samples,
        epoch=1,
        node_s=60.0,
        reports=(Report(value=value, samples=samples),),
        checkpoint_dir="/c",
    )


def test_a_study_has_its_best_trial_and_a_day_what_was_to_be_had(page: Page) -> None:
    whose = Whose(user="ada", trainer_id="t1", day=day_of(T0, "UTC"))
    page.service.account_sums = {whose: NodeTime(trained_s=1800.0, redone_s=360.0, warm_up_s=720.0)}
    page.service.uses = UsesOfNodes(lambda: "UTC")
    for at_s in (T0, T0 + 3600.0):
        page.service.saw(trained(at_s, n1="", n2="t1"), PLAN)
    page.service.trials = TwoTrials()
    page.open()
    page.says("of it trained", "#harvest")
    page.says("50.0%", "#harvest")
    page.says("redone", "#harvest")
    page.click("#tab-harvest")
    head, row = page.text("#harvest").splitlines()[:2]
    # 0.8 h harvested; 0.2 h of it in starts, none idle, 0.1 h redone.
    figures = re.findall(r"\d+(?:\.\d+)?", row.partition(whose.day)[2])[:4]
    assert [float(figure) for figure in figures] == [0.8, 0.2, 0.0, 0.1], head
    page.says("digits-1", "#studies")
    page.click('[data-study="digits-1"]')
    page.says("1 ★ best", "#trials")
    assert page.text("#trials").count("best") == 1


def test_a_link_in_a_terminal_that_is_a_page_opens_it(page: Page) -> None:
    page.driver.get("about:blank")
    page.driver.get(f'data:text/html,<a href="{page.links[-1].replace("#", "%23")}">a link</a>')
    page.click("a")
    page.says("Live")
    page.says("net", "#trainers")


@pytest.mark.long
def test_any_number_of_tabs_is_live(page: Page) -> None:
    """A browser has six connections to a host; each event stream would keep one."""
    page.open()
    first = page.driver.current_window_handle
    address = page.driver.current_url
    for _ in range(7):
        page.driver.switch_to.new_window("tab")
        page.driver.get(address)
        page.says("Live")
        page.says("net", "#trainers")
    page.service.records["t2"] = record("t2", name="second")
    page.service.saw(trained(time.time(), n1="t2", n2="t1"), PLAN)
    for tab in page.driver.window_handles[::-1]:
        page.driver.switch_to.window(tab)
        page.says("second", "#trainers")
        if tab != first:
            page.driver.close()
    page.driver.switch_to.window(first)
    assert complaints(page.driver) == []


def test_it_fits_a_phone(page: Page) -> None:
    resize(page.driver, 400, 800)
    page.service.records["t2"] = record("t2", name="x" * 200)
    page.open()
    page.says("t2", "#trainers")
    width = page.run("return document.documentElement.scrollWidth")
    assert width <= 400


@pytest.mark.long
def test_a_big_site_is_drawn_at_once(page: Page) -> None:
    """Ten thousand changes of a thousand nodes, two hundred trainers; seconds are the bench's."""
    names = [f"n{k:04}" for k in range(1000)]
    for k in range(200):
        page.service.records[f"t{k}"] = record(f"t{k}")
    began_s = time.time() - 100.0
    for step in range(100):
        who = {n: f"t{(k + step // 10 * (k % 10 == step % 10)) % 200}" for k, n in enumerate(names)}
        page.service.saw(trained(began_s + step, **who), PLAN)
    page.open()
    assert page.run("return document.querySelectorAll('#trainers tr').length") == 26
    far = TrainerProgress(samples=990, samples_per_s=10.0)
    page.service.records["t199"] = record("t199", progress=far)
    page.service.saw(trained(time.time(), **dict.fromkeys(names, "t1")), PLAN)
    page.says("1 to 25 of 200", "#pages")
    for _ in range(7):
        page.click("#pages button:last-child")
        page.run("return new Promise(requestAnimationFrame)")
    page.says("176 to 200 of 200", "#pages")
    page.says("99.0%", "#trainers tr:nth-child(26)")
    page.run("document.getElementById('filter').value = 'n0999'")
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")

    def points_at(name: str) -> bool:
        """Press keys until what is under the pointer has this name: the filter takes a moment."""
        for key in ("ArrowDown", "ArrowLeft"):
            page.run(
                "document.getElementById('picture').dispatchEvent("
                f"new KeyboardEvent('keydown', {{key: '{key}'}}))"
            )
        return name in page.text("#under")

    wait_for(lambda: points_at("n0999"), what="the filtered node is under the pointer")


def grown(trainer_id: str, **more: Any) -> TrainerRecord:
    """A trainer of whoever runs the tests, with two reports."""
    found = record(trainer_id)
    mine = replaced(found.spec, user=getpass.getuser())
    reports = tuple(Report(value=v, step=k, reported_s=T0 + k) for k, v in enumerate((2.0, 0.5)))
    return replaced(found, spec=mine, reports=reports, **more)


def test_my_trainers_come_first_with_their_curves(page: Page) -> None:
    for at_s, size, loss in ((10.0, 1, 4.0), (20.0, 2, None), (30.0, 2, 1.5), (40.0, 2, 1.25)):
        page.service.records["t2"] = grown(
            "t2",
            progress=TrainerProgress(
                size=size, samples_per_s=7.0 * size, reported_s=T0 + at_s, loss=loss,
                gpu_use=GpuLoad(
                    gpus=1, use_percent=87.0, memory_used_mib=31744.0, memory_total_mib=81559.0
                ),
            ),
        )  # fmt: skip
        page.service.wake_with_records(T0 + at_s)
    page.service.account_sums = {
        Whose(user="ada", trainer_id="t2", day=day_of(T0, "UTC")): NodeTime(
            trained_s=3600.0, warm_up_s=3600.0
        )
    }
    page.open()
    page.says("t2", "#trainers tr:nth-child(2)")
    page.says("Of your trainers 1 trains on 1 node, 0 wait.", "#headline")
    drawn = "#trainers tr:nth-child(2) .spark path"
    assert page.run(f"return document.querySelectorAll('{drawn}').length") == 4
    page.says("1.25", '#trainers tr:nth-child(2) [data-name="training loss"]')
    wide = "const box = document.getElementById('trainers').parentElement;"
    assert page.run(f"{wide} return box.scrollWidth - box.clientWidth") <= 0, "all columns are seen"
    page.says("2", "#trainers tr:nth-child(2) [data-name=node-hours]")
    page.run(
        "const price = document.getElementById('price'); price.value = '1.5';"
        "price.dispatchEvent(new Event('input'))"
    )
    page.says("1.50 elsewhere", "#trainers tr:nth-child(2)")
    page.click('[data-trainer="t2"]')
    page.says("GPU use 87%, memory 31 of 80 GiB.", "#explain")
    page.says("GPU use, %: 87", "#explain")
    page.says("training loss: 1.25", "#explain")
    page.says("metric: 0.5", "#explain")
    page.says("samples/s: 14", "#explain")
    page.says("workers: 2", "#explain")
    page.says("bftrainer cancel t2", "#explain")
    assert page.run("return document.querySelectorAll('#explain .line').length") == 5
    line = page.run("return document.querySelector('#explain .line').getAttribute('d')")
    shapes = re.findall(r"[MLHVh]", line)
    assert shapes == ["M", "h", "M", "L"], "a dot, a gap where it is not known, a line"
    assert complaints(page.driver) == []


def test_what_failed_is_red_with_the_last_line_of_its_log(page: Page) -> None:
    page.service.records["t2"] = grown("t2", state=TrainerState.FAILED, reason="It failed twice.")
    page.service.saw(trained(time.time(), n1="t1", n2="t1"), PLAN)
    page.open()
    page.says("1 failed", "#headline")
    page.says("CUDA out of memory.", "#trainers .failed")
    colour = "return getComputedStyle(document.querySelector('#trainers .failed .bad')).color"
    assert page.run(colour) == "rgb(164, 14, 38)"
    page.click('#trainers .failed [data-log="1"]')
    page.says("epoch 1", "#explain pre")


def test_the_rest_is_behind_tabs(page: Page) -> None:
    page.open()
    is_shown = "return [...document.querySelectorAll('[role=tabpanel]')].map((one) => !one.hidden)"
    assert page.run(is_shown) == [True, False, False, False]
    page.run(
        "const tab = document.getElementById('tab-harm'); tab.focus();"
        "tab.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))"
    )
    assert page.run(is_shown) == [False, False, False, True]
    assert page.run("return document.activeElement.id") == "tab-daemon"


def test_what_ordinary_jobs_noticed_is_told_of_nodes_and_of_parts(page: Page) -> None:
    """Single ones are one node and one job; with parts of nodes the words are of both."""
    page.service.harm_records = [HarmRecords(hand_overs=(HAND_OVER,))]
    page.open()
    page.click("#tab-harm")
    page.says("1 node to 1 job, 0.0% of the measured in time", "#harm")
    page.says("1 node given back, 0 preempted", "#harm")
    part = replaced(HAND_OVER, node="n1/0", gpus=2, gpu_type="gpu:a100", how=How.PREEMPTED)
    page.service.harm_records = [HarmRecords(hand_overs=(HAND_OVER, part))]
    page.says("2 nodes or parts (2 GPUs of parts) to 1 job", "#harm")
    page.says("1 node or part given back, 1 preempted", "#harm")
    page.says("of nodes or parts free within", "#harm")


def test_the_headline_counts_parts_where_trainers_ask_for_gpus(page: Page) -> None:
    plain = record("t1")
    page.service.records["t1"] = replaced(plain, spec=replaced(plain.spec, gpus_per_unit=1))
    page.open()
    page.says("1 trains on 1 node or part, 0 wait.", "#headline")


def test_a_phone_shows_two_hundred_trainers_in_less_than_five_screens(page: Page) -> None:
    resize(page.driver, 400, 800)
    for k in range(200):
        page.service.records[f"t{k}"] = record(f"t{k}", reason="It waits for a node." * (k % 2))
    page.open()
    page.says("1 to 25 of 200", "#pages")
    assert page.run("return document.documentElement.scrollHeight") < 5 * 800
    assert page.run("return document.documentElement.scrollWidth") <= 400
