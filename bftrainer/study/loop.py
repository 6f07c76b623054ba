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
from bftrainer.ground.fence import write_whole
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
    STOPPED,
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
        self._n_failed = self._n_failed_in_row = 0  # trials, since this process began
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
        view, wishes_before = self.meet(), self._wishes
        self._wishes = read_wishes(self._study.path)
        is_due = self._has_news or bool(self._silent_since) or self._actor.is_limited
        if not is_due and self._wishes == wishes_before:
            return False
        rule = self._rule()
        trials = self._record(self._trials_of(view))
        self._cleaner.clean(trials)
        if self._wishes.is_stopped:
            self._end(trials, "Its study was stopped.")
            return True
        if self._obey_pause(trials):
            return False
        self._refuse_hopeless(trials, rule_of(rule.describe()).wanted)
        active = _at_stage(TrialStage.ACTIVE, trials)
        missing = [trial for trial in active if trial.view is None or trial.is_to_retry]
        if self._actor.submit(missing, rule.most, _sizes(rule)) and missing:
            self._is_hasty = True
            return False
        verdicts = self._verdicts(rule, trials, view)
        self._act(verdicts, trials)
        self._summarize_at_times(trials)
        is_busy = verdicts.grow or verdicts.start or verdicts.stop
        if is_busy or not verdicts.is_over or active:
            return False
        self._end(trials, "Its study is over.")
        return True

    def meet(self) -> StudyView:
        """Look at the study's daemon; BFT-1630, it is another one."""
        view = self._look()
        self._check_daemon(view)
        return view

    def obey(self) -> None:
        """Carry out what the user wants, and nothing else: for verbs while no loop runs."""
        self._wishes = read_wishes(self._study.path)
        trials = self._record(self._trials_of(self.meet()))
        if self._wishes.is_stopped:
            self._end(trials, "Its study was stopped.")
        else:
            self._obey_pause(trials)
        self.summarize()

    def _look(self, *, is_whole: bool = False) -> StudyView:
        """Return what the daemon knows: at once if something is to do, else when it changes."""
        now_s, view_before = time.monotonic(), self._view
        is_late = now_s - self._whole_s >= WHOLE_S
        last_seen = None
        if view_before is not None and not is_whole and not is_late:
            last_seen = view_before.seen
        wait_s = 0 if self._is_hasty else NEWS_S
        news = self._client.study(self._study.study_id, seen=last_seen, wait_s=wait_s)
        if self._is_away:
            self._is_away = False
            self._events.happened("back", "the daemon is back")
        if news.is_whole:
            self._known_views, self._whole_s = {}, now_s
        for view in news.trials:
            self._known_views[view.tag.key] = view
        is_pool_new = view_before is None or news.pool_nodes != view_before.pool_nodes
        if is_pool_new:
            self._events.happened("pool", nodes=news.pool_nodes)
        self._has_news = self._is_hasty or news.is_whole or bool(news.trials) or is_pool_new
        self._is_hasty = False
        self._view = replace(news, trials=tuple(self._known_views.values()))
        return self._view

    def _trials_of(self, view: StudyView) -> tuple[KnownTrial, ...]:
        """Put storage and daemon together."""
        document = self._study.document
        return know(
            self._storage.trials(),
            view.trials,
            unit=document.unit,
            retry=document.retry,
            most=self._rule().most,
        )

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

    def _record(self, trials: Sequence[KnownTrial]) -> tuple[KnownTrial, ...]:
        """Write values and ends into the storage; end what it knows as ended."""
        self._disk.check(trials)
        judged_trials: list[KnownTrial] = []
        for trial in trials:
            self._write_values(trial)
            judged = self._judge(trial)
            if judged.stage.is_over and judged.stored.end is None:
                self._finish(judged, judged.reason)
            if judged.stage.is_over and judged.is_alive:
                self._actor.cancel(judged)
            judged_trials.append(judged)
        return tuple(judged_trials)

    def _write_values(self, trial: KnownTrial) -> None:
        if trial.stored.end is not None:
            return
        values = trial.unwritten()
        if not values:
            return
        self._storage.report(trial.number, values)
        self._n_failed_in_row = 0
        document = self._study.document
        for units, value in values.items():
            line = f"trial {trial.number}: {document.metric} {value:g} at {units} {document.unit}"
            self._events.happened("reported", line, trial=trial.number, units=units, value=value)

    def _judge(self, trial: KnownTrial) -> KnownTrial:
        """Return it as failed if it used up its budget and never reported anything."""
        is_at_end = trial.stage in (TrialStage.WAITING, TrialStage.COMPLETE)
        if trial.values or trial.stored.end or not is_at_end:
            self._silent_since.pop(trial.number, None)
            return trial
        since_s = self._silent_since.setdefault(trial.number, time.monotonic())
        if time.monotonic() - since_s >= SILENT_S:
            return replace(trial, stage=TrialStage.FAILED)
        return replace(trial, stage=TrialStage.ACTIVE)

    def _finish(self, trial: KnownTrial, reason: str) -> None:
        """Write its end."""
        if trial.stage is TrialStage.COMPLETE:
            reason = ""
        if trial.stage is TrialStage.FAILED:
            self._n_failed, self._n_failed_in_row = self._n_failed + 1, self._n_failed_in_row + 1
        self._storage.finish(
            trial.number,
            trial.stage,
            value=trial.value,
            reason=reason,
            orders=trial.reported_s,
            node_s=trial.node_s,
        )
        line = f"trial {trial.number} is {trial.stage}"
        if trial.value is not None:
            line += f", {self._study.document.metric} {trial.value:g}"
        if reason:
            line += f": {reason}"
        self._events.happened(str(trial.stage), line, trial=trial.number, reason=reason)

    def _refuse_hopeless(self, trials: Sequence[KnownTrial], wanted: int) -> None:
        """Raise BFT-1629 if the last HOPELESS that ended all failed and no trial ever reported.

        With ``failed: ignore`` others take the place of failed ones without end. There it is
        enough that HOPELESS failed in a row since this process began, or as many as are wanted.
        """
        ends = (TrialStage.COMPLETE, TrialStage.FAILED)  # others: for the user's or study's sake
        ended = [trial for trial in trials if trial.stage in ends]
        ended.sort(key=lambda trial: (trial.stored.ended_s or math.inf, trial.number))
        newest = ended[-HOPELESS:]
        has_report = any(trial.values for trial in trials)
        newest_failed = _at_stage(TrialStage.FAILED, newest)
        is_script_broken = len(newest_failed) == HOPELESS and not has_report
        is_endless = self._n_failed_in_row >= HOPELESS or self._n_failed >= max(HOPELESS, wanted)
        if not (is_script_broken or (is_endless and self._study.document.failed == "ignore")):
            return
        path = self._study.path
        count = self._n_failed
        next_step = f"run {path} again; 'bftrainer study stop {path}' ends its trials"
        if is_script_broken:
            count = HOPELESS
            next_step = f"end its trials with 'bftrainer study stop {path}' and begin another study"
        self._write_summary(FAILED, trials)
        last = _at_stage(TrialStage.FAILED, ended)[-1]
        logs = self._study.of_trial(last.number) / "logs"
        raise BftError(
            "BFT-1629",
            f"{count} trials failed, the last one: {last.reason}",
            f"Read {logs} and correct the script. Then {next_step}.",
        )

    # ---- wishes ------------------------------------------------------------------------

    def _end(self, trials: Sequence[KnownTrial], why: str) -> tuple[KnownTrial, ...]:
        """End all trials that have not ended, and return what they are then."""
        for trial in trials:
            if not trial.stage.is_over:
                self._finish(replace(trial, stage=TrialStage.STOPPED), why)
                self._actor.cancel(trial)
        until_s = time.monotonic() + LAST_S
        while True:
            ended = self._trials_of(self._look(is_whole=True))
            if not any(map(writes, ended)) or time.monotonic() >= until_s:
                self._cleaner.clean(ended)
                return ended
            time.sleep(LAST_LOOK_S)

    def _obey_pause(self, trials: Sequence[KnownTrial]) -> bool:
        """Hold or release trials; return whether the study is paused."""
        note = self._storage.note(PAUSED)
        if self._wishes.is_paused:
            self._pause(trials, is_new=not note)
        elif note:
            # Earlier releases noted True, not the trials that the user had held before.
            held_before: Sequence[int] = ()
            if isinstance(note, dict):
                held_before = note["held_before"]
            to_release = [trial for trial in trials if trial.number not in held_before]
            self._actor.hold(to_release, is_held=False)
            self._storage.set_note(PAUSED, value=False)
            self._events.happened("resumed", "the study goes on")
        return self._wishes.is_paused

    def _pause(self, trials: Sequence[KnownTrial], *, is_new: bool) -> None:
        """Hold all trials; note before which of them the user holds anyway."""
        line = (
            "the study is paused; it keeps its trials. It goes on with:"
            f" bftrainer study resume {self._study.path}"
        )
        if is_new:
            users = [trial.number for trial in trials if trial.view and trial.view.is_held]
            self._storage.set_note(PAUSED, {"held_before": users})
            self._events.happened("paused", line)
        elif not self._is_pause_told:
            self._events.say(line)
        self._is_pause_told = True
        self._actor.hold(trials, is_held=True)
        self._summarize_at_times(trials)

    # ---- the rule ----------------------------------------------------------------------

    def _verdicts(self, rule: StudyRule, trials: Sequence[KnownTrial], view: StudyView) -> Verdicts:
        """Return what the rule wants now."""
        document = self._study.document
        active = _at_stage(TrialStage.ACTIVE, trials)
        room = max(0, self.parallel(view.pool_nodes) - len(active))
        judged = trials
        if document.failed != "worst":  # another trial takes the place of one that failed
            judged = [trial for trial in trials if trial.stage is not TrialStage.FAILED]
        return rule.verdicts([trial.as_trial(document.sign) for trial in judged], room)

    def parallel(self, pool_nodes: int) -> int:
        """Return how many trials are active at once."""
        if self._study.document.parallel != "auto":
            return self._study.document.parallel
        fit = pool_nodes // max(1, self._study.base.n_min)
        return fit + max(1, fit // 8)  # a freed node is not to wait for the next turn

    def _act(self, verdicts: Verdicts, trials: Sequence[KnownTrial]) -> None:
        """Carry the verdicts out; an end is written before the trainer is cancelled."""
        by_number = {trial.number: trial for trial in trials}
        # The first ones are not to wait until all are drawn.
        self._is_hasty = self._actor.create(verdicts.start[:STARTS_AT_ONCE], trials)
        self._actor.grow([by_number[number] for number in verdicts.grow], verdicts)
        for number, why in verdicts.stop.items():
            self._finish(replace(by_number[number], stage=TrialStage.STOPPED), why)
            self._actor.cancel(by_number[number])

    # ---- what is left ------------------------------------------------------------------

    def _summarize_at_times(self, trials: Sequence[KnownTrial]) -> None:
        began_s = time.monotonic()
        if began_s >= self._summary_s:
            self._write_summary(RUNNING, trials)
            took_s = time.monotonic() - began_s
            self._summary_s = time.monotonic() + max(SUMMARY_S, SUMMARY_SHARE * took_s)

    def summarize(self, *, is_over: bool = False) -> StudySummary:
        """Look once more and return what the study has come to by now."""
        self._wishes = read_wishes(self._study.path)
        view = self._look(is_whole=True)
        trials = self._trials_of(view)
        if not is_over and not _at_stage(TrialStage.ACTIVE, trials):
            is_over = self._verdicts(self._rule(), trials, view).is_over
        if is_over:
            return self._write_summary(OVER, trials)
        return self._write_summary(LEFT, trials)

    def _rule(self) -> StudyRule:
        return self._with_rule(self._study.document.rule_with(self._wishes.more))

    def _write_summary(self, state: str, trials: Sequence[KnownTrial]) -> StudySummary:
        if self._wishes.is_stopped:
            state = STOPPED
        elif self._wishes.is_paused:
            state = "paused"
        summary = summary_of(self._study, self._wishes, state, trials, self._view)
        try:
            document = json.dumps(document_of(SUMMARY_SCHEMA, summary))
            write_whole(self._study.summary, [document.encode()])
        except OSError as problem:
            self._events.unwritten(self._study.summary, problem)
        return summary


def _at_stage(stage: TrialStage, trials: Sequence[KnownTrial]) -> list[KnownTrial]:
    return [trial for trial in trials if trial.stage is stage]


def _sizes(rule: StudyRule) -> Callable[[KnownTrial], int | None]:
    """Return which size a trial is to have: a plan's, where its budget is now; None: any."""
    if not isinstance(rule, Carried):
        return lambda _: None
    return lambda trial: rule.nodes_of(trial.stored.bracket, trial.budget)


def summary_of(
    study: StudyDirectory,
    wishes: Wishes,
    state: str,
    trials: Sequence[KnownTrial],
    view: StudyView | None,
) -> StudySummary:
    """Return what a study has come to."""
    document = study.document
    return summarized(
        trials,
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
