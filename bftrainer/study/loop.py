"""The loop of a study: look, ask the rule, act; each turn reads the state anew.

The daemon keeps trials' lives, the storage their parameters and values, a file the user's wishes.
Killed at any time and started again, it goes on where it was.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bftrainer.api.client import Client
from bftrainer.api.documents import document as document_of
from bftrainer.elastic.fence import write_whole
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.study import StudyView, TrialView
from bftrainer.study.actions import Actor
from bftrainer.study.directory import Events, StudyDirectory, Wishes, read_wishes
from bftrainer.study.disk import Cleaner, FullDisk, writes
from bftrainer.study.plan.document import Carried
from bftrainer.study.rungs import rule_of
from bftrainer.study.storage import StudyStorage
from bftrainer.study.trial_table import (
    FAILED,
    LEFT,
    OVER,
    RUNNING,
    SUMMARY_SCHEMA,
    KnownTrial,
    StudySummary,
    know,
    summarized,
)
from bftrainer.study.trials import StudyRule, TrialStage, Verdicts

NEWS_S = 1  # how long the daemon may wait for news: so late wishes are seen
AWAY_S = 0.5  # between two tries while the daemon is away
WHOLE_S = 10.0  # progress is no news: so often everything is read again
SUMMARY_S = 1.0  # between two summaries, or longer if one takes long
SUMMARY_SHARE = 20.0  # how much longer
SILENT_S = 5.0  # a trial at its rung whose report has not come by then has reported nothing
STARTS_AT_ONCE = 50
HOPELESS = 5  # trials in a row that failed without a report
LAST_S, LAST_LOOK_S = 10.0, 0.1  # for workers of ended trials to end; between two looks at them
# Notes in the storage: trials are held by us, and which the user had held before; who has them.
PAUSED, DAEMON = "paused", "daemon"
_JOURNAL = "BFT-22"  # codes of a daemon that cannot write for now: its disk is full


class StudyLoop:
    """One study, run by this process."""

    def __init__(
        self,
        study: StudyDirectory,
        client: Client,
        storage: StudyStorage,
        say: Callable[[str], None],
        with_rule: Callable[[StudyRule], StudyRule] = lambda rule: rule,
        *,
        is_new_daemon: bool = False,
    ) -> None:
        self._study, self._client, self._storage = study, client, storage
        self._events = Events(study.events, say)
        self._actor = Actor(study, client, storage, self._events)
        self._disk, self._cleaner = FullDisk(study.path), Cleaner(study)
        self._with_rule = with_rule
        self._daemon = ""  # that was checked
        self._is_new_daemon = is_new_daemon  # it is to train on what another one began
        self._view: StudyView | None = None
        self._wishes = Wishes()
        self._silent_since: dict[int, float] = {}
        self._summary_s = -math.inf
        self._failed = self._failed_in_row = 0  # trials, since this process began
        self._is_away = self._is_pause_told = False
        self._is_hasty = False  # the next turn is not to wait for news
        self._has_news = True
        self._known_views: dict[tuple[str, int, int], TrialView] = {}
        self._whole_s = -math.inf

    # ---- turns -----------------------------------------------------------------------

    def run(self) -> StudySummary:
        """Take turns until the study is over; return what it came to."""
        while True:
            try:
                if self.turn():
                    return self.summarize(is_over=True)
            except BftError as error:
                is_away = error.exit_code in (ExitCode.DAEMON_UNREACHABLE, ExitCode.TIMEOUT)
                if not is_away and not error.code.startswith(_JOURNAL):
                    raise
                self._await_daemon(error)

    def _await_daemon(self, error: BftError) -> None:
        if not self._is_away:
            self._events.happened("away", f"the daemon is away, trials go on: {error.cause}")
        self._is_away, self._view = True, None
        time.sleep(AWAY_S)

    def turn(self) -> bool:
        """Take one turn; return whether the study is over."""
        view, before = self.meet(), self._wishes
        self._wishes = read_wishes(self._study.path)
        is_due = self._has_news or bool(self._silent_since) or self._actor.is_limited
        if not (is_due or self._wishes != before):
            return False
        rule = self._rule()
        known = self._record(self._known(view))
        self._cleaner.clean(known)
        if self._wishes.is_stopped:
            self._end(known, "Its study was stopped.")
            return True
        if self._obey_pause(known):
            return False
        self._refuse_hopeless(known, rule_of(rule.describe()).wanted)
        active = [one for one in known if one.stage is TrialStage.ACTIVE]
        missing = [one for one in active if one.view is None or one.is_to_retry]
        if self._actor.submit(missing, rule.most, _sizes(rule)) and missing:
            self._is_hasty = True
            return False
        verdicts = self._asked(rule, known, view)
        self._act(verdicts, known)
        self._summarize_at_times(known)
        is_busy = verdicts.grow or verdicts.start or verdicts.stop
        if is_busy or not verdicts.is_over or active:
            return False
        self._end(known, "Its study is over.")
        return True

    def meet(self) -> StudyView:
        """Look at the study's daemon; BFT-1630, it is another one."""
        view = self._look()
        self._check_daemon(view)
        return view

    def obey(self) -> None:
        """Carry out what the user wants, and nothing else: for verbs while no loop runs."""
        self._wishes = read_wishes(self._study.path)
        known = self._record(self._known(self.meet()))
        if self._wishes.is_stopped:
            self._end(known, "Its study was stopped.")
        else:
            self._obey_pause(known)
        self.summarize()

    def _look(self, *, is_whole: bool = False) -> StudyView:
        """Return what the daemon knows: at once if something is to do, else when it changes."""
        now_s = time.monotonic()
        is_whole = is_whole or self._view is None or now_s - self._whole_s >= WHOLE_S
        seen = None if is_whole or self._view is None else self._view.seen
        news = self._client.study(
            self._study.study_id, seen=seen, wait_s=0 if self._is_hasty else NEWS_S
        )
        if self._is_away:
            self._is_away = False
            self._events.happened("back", "the daemon is back")
        if news.is_whole:
            self._known_views, self._whole_s = {}, now_s
        self._known_views |= {one.tag.key: one for one in news.trials}
        before = self._view
        if before is None or news.pool_nodes != before.pool_nodes:
            self._events.happened("pool", nodes=news.pool_nodes)
        self._has_news = self._is_hasty or news.is_whole or bool(news.trials)
        self._has_news = self._has_news or before is None or before.pool_nodes != news.pool_nodes
        self._is_hasty = False
        self._view = replace(news, trials=tuple(self._known_views.values()))
        return self._view

    def _known(self, view: StudyView) -> tuple[KnownTrial, ...]:
        """Put storage and daemon together."""
        document, stored, most = self._study.document, self._storage.trials(), self._rule().most
        return know(stored, view.trials, unit=document.unit, retry=document.retry, most=most)

    def _check_daemon(self, view: StudyView) -> None:
        """Note the daemon before it gets a trial; refuse another one, as both would train it."""
        if view.daemon == self._daemon:
            return
        noted = self._storage.note(DAEMON)
        if noted not in (None, view.daemon) and not self._is_new_daemon:
            raise BftError(
                "BFT-1630",
                "The study began with another daemon, which may train its trials.",
                "Name that one with --socket. If it is gone for good, 'bftrainer study run"
                f" --new-daemon {self._study.path}' goes on from the checkpoints, or does what"
                " 'stop' or 'pause' noted.",
                exit_code=ExitCode.USAGE,
            )
        self._storage.set_note(DAEMON, view.daemon)
        self._daemon, self._is_new_daemon = view.daemon, False

    # ---- what happened -----------------------------------------------------------------

    def _record(self, known: Sequence[KnownTrial]) -> tuple[KnownTrial, ...]:
        """Write values and ends into the storage; end what it knows as ended."""
        self._disk.check(known)
        found = []
        for one in known:
            self._write_values(one)
            now = self._judged(one)
            if now.stage.is_over and now.stored.end is None:
                self._finish(now, now.reason)
            if now.stage.is_over and now.is_alive:
                self._actor.cancel(now)
            found.append(now)
        return tuple(found)

    def _write_values(self, one: KnownTrial) -> None:
        if one.stored.end is not None or not (values := one.unwritten()):
            return
        self._storage.report(one.number, values)
        self._failed_in_row = 0
        document = self._study.document
        for units, value in values.items():
            line = f"trial {one.number}: {document.metric} {value:g} at {units} {document.unit}"
            self._events.happened("reported", line, trial=one.number, units=units, value=value)

    def _judged(self, one: KnownTrial) -> KnownTrial:
        """Return it as failed if it used up its budget and never reported anything."""
        is_at_end = one.stage in (TrialStage.WAITING, TrialStage.COMPLETE)
        if one.values or one.stored.end or not is_at_end:
            self._silent_since.pop(one.number, None)
            return one
        since_s = self._silent_since.setdefault(one.number, time.monotonic())
        if time.monotonic() - since_s >= SILENT_S:
            return replace(one, stage=TrialStage.FAILED)
        return replace(one, stage=TrialStage.ACTIVE)

    def _finish(self, one: KnownTrial, reason: str) -> None:
        """Write its end."""
        if one.stage is TrialStage.COMPLETE:
            reason = ""
        if one.stage is TrialStage.FAILED:
            self._failed, self._failed_in_row = self._failed + 1, self._failed_in_row + 1
        self._storage.finish(
            one.number,
            one.stage,
            value=one.value,
            reason=reason,
            orders=one.reported_s,
            node_s=one.node_s,
        )
        value = "" if one.value is None else f", {self._study.document.metric} {one.value:g}"
        line = f"trial {one.number} is {one.stage}{value}{f': {reason}' if reason else ''}"
        self._events.happened(str(one.stage), line, trial=one.number, reason=reason)

    def _refuse_hopeless(self, known: Sequence[KnownTrial], wanted: int) -> None:
        """Stop asking for trials when the newest that ended all failed and no trial ever reported.

        Where others take the place of failed ones there would be no end: there it is enough that
        the last ones failed, or as many as are wanted, since this process began.
        """
        ends = (TrialStage.COMPLETE, TrialStage.FAILED)  # others: for the user's or study's sake
        over = sorted(
            (one for one in known if one.stage in ends),
            key=lambda one: (one.stored.ended_s or math.inf, one.number),
        )
        newest = over[-HOPELESS:]
        is_script = len(newest) == HOPELESS and not any(one.values for one in known)
        is_script = is_script and all(one.stage is TrialStage.FAILED for one in newest)
        is_endless = self._failed_in_row >= HOPELESS or self._failed >= max(HOPELESS, wanted)
        if not (is_script or (is_endless and self._study.document.failed == "ignore")):
            return
        path = self._study.path
        then = f"run {path} again; 'bftrainer study stop {path}' ends its trials"
        if is_script:
            then = f"end its trials with 'bftrainer study stop {path}' and begin another study"
        self._write_summary(FAILED, known)
        last = [one for one in over if one.stage is TrialStage.FAILED][-1]
        logs = self._study.of_trial(last.number) / "logs"
        raise BftError(
            "BFT-1629",
            f"{HOPELESS if is_script else self._failed} trials failed, the last one: {last.reason}",
            f"Read {logs} and correct the script. Then {then}.",
        )

    # ---- wishes ------------------------------------------------------------------------

    def _end(self, known: Sequence[KnownTrial], why: str) -> tuple[KnownTrial, ...]:
        """End all trials that have not ended, and return what they are then."""
        for one in known:
            if not one.stage.is_over:
                self._finish(replace(one, stage=TrialStage.STOPPED), why)
                self._actor.cancel(one)
        until_s = time.monotonic() + LAST_S
        while True:
            ended = self._known(self._look(is_whole=True))
            if not any(map(writes, ended)) or time.monotonic() >= until_s:
                self._cleaner.clean(ended)
                return ended
            time.sleep(LAST_LOOK_S)

    def _obey_pause(self, known: Sequence[KnownTrial]) -> bool:
        """Hold or release trials; return whether the study is paused."""
        note = self._storage.note(PAUSED)
        if self._wishes.is_paused:
            line = (
                "the study is paused; it keeps its trials. It goes on with:"
                f" bftrainer study resume {self._study.path}"
            )
            if not note:
                before = [one.number for one in known if one.view and one.view.is_held]
                self._storage.set_note(PAUSED, {"held_before": before})
                self._events.happened("paused", line)
            elif not self._is_pause_told:
                self._events.say(line)
            self._is_pause_told = True
            self._actor.hold(known, is_held=True)
            self._summarize_at_times(known)
        elif note:
            users = note["held_before"] if isinstance(note, dict) else ()  # True: earlier releases
            self._actor.hold([one for one in known if one.number not in users], is_held=False)
            self._storage.set_note(PAUSED, value=False)
            self._events.happened("resumed", "the study goes on")
        return self._wishes.is_paused

    # ---- the rule ----------------------------------------------------------------------

    def _asked(self, rule: StudyRule, known: Sequence[KnownTrial], view: StudyView) -> Verdicts:
        document = self._study.document
        seen = [
            one for one in known if one.stage is not TrialStage.FAILED or document.failed == "worst"
        ]
        active = sum(one.stage is TrialStage.ACTIVE for one in known)
        room = max(0, self.parallel(view.pool_nodes) - active)
        return rule.verdicts([one.as_trial(document.sign) for one in seen], room)

    def parallel(self, pool_nodes: int) -> int:
        """Return how many trials are active at once."""
        if self._study.document.parallel != "auto":
            return self._study.document.parallel
        fit = pool_nodes // max(1, self._study.base.n_min)
        return fit + max(1, fit // 8)  # a freed node is not to wait for the next turn

    def _act(self, verdicts: Verdicts, known: Sequence[KnownTrial]) -> None:
        """Carry the verdicts out; an end is written before the trainer is cancelled."""
        by_number = {one.number: one for one in known}
        # The first ones are not to wait until all are drawn.
        self._is_hasty = self._actor.create(verdicts.start[:STARTS_AT_ONCE], known)
        self._actor.grow([by_number[number] for number in verdicts.grow], verdicts)
        for number, why in verdicts.stop.items():
            self._finish(replace(by_number[number], stage=TrialStage.STOPPED), why)
            self._actor.cancel(by_number[number])

    # ---- what is left ------------------------------------------------------------------

    def _summarize_at_times(self, known: Sequence[KnownTrial]) -> None:
        began_s = time.monotonic()
        if began_s >= self._summary_s:
            self._write_summary(RUNNING, known)
            took_s = time.monotonic() - began_s
            self._summary_s = time.monotonic() + max(SUMMARY_S, SUMMARY_SHARE * took_s)

    def summarize(self, *, is_over: bool = False) -> StudySummary:
        """Look once more and return what the study has come to by now."""
        self._wishes = read_wishes(self._study.path)
        view = self._look(is_whole=True)
        known = self._known(view)
        if not is_over and not any(one.stage is TrialStage.ACTIVE for one in known):
            is_over = self._asked(self._rule(), known, view).is_over
        return self._write_summary(OVER if is_over else LEFT, known)

    def _rule(self) -> StudyRule:
        return self._with_rule(self._study.document.rule_with(self._wishes.more))

    def _write_summary(self, state: str, known: Sequence[KnownTrial]) -> StudySummary:
        if self._wishes.is_stopped or self._wishes.is_paused:
            state = "stopped" if self._wishes.is_stopped else "paused"
        summary = summary_of(self._study, self._wishes, state, known, self._view)
        try:
            written = json.dumps(document_of(SUMMARY_SCHEMA, summary))
            write_whole(self._study.summary, [written.encode()])
        except OSError as problem:
            self._events.unwritten(self._study.summary, problem)
        return summary


def _sizes(rule: StudyRule) -> Callable[[KnownTrial], int | None]:
    """Return which size a trial is to have: a plan's, where its budget is now; None: any."""
    if not isinstance(rule, Carried):
        return lambda _: None
    return lambda one: rule.nodes_of(one.stored.bracket, one.budget)


def summary_of(
    study: StudyDirectory,
    wishes: Wishes,
    state: str,
    known: Sequence[KnownTrial],
    view: StudyView | None,
) -> StudySummary:
    """Return what a study has come to."""
    document = study.document
    return summarized(
        known,
        view,
        time.time(),
        study=study.study_id,
        name=document.name or "",
        directory=str(study.path),
        state=state,
        metric=document.metric,
        direction=document.direction,
        unit=document.unit,
        retry=document.retry,
        rule=document.rule_with(wishes.more).describe(),
        created_s=study.created_s,
    )
